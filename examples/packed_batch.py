"""Three documents in one row without padding, each as if it were alone."""

import torch

from ordinate import RoPE, attention, attention_varlen, positions

torch.manual_seed(0)
lengths = [3, 5, 4]
rope = RoPE(64)
q, k, v = torch.randn(1, 8, 12, 64), torch.randn(1, 2, 12, 64), torch.randn(1, 2, 12, 64)

where, whose = positions.packed(lengths), positions.segment_ids(lengths)
print("positions", where.tolist())
print("segments ", whose.tolist())
packed = attention(q, k, v, rope, causal=True, q_positions=where, q_segment_ids=whose)

parts = [tensor.split(lengths, dim=2) for tensor in (q, k, v)]
separate = torch.cat([attention(*each, rope, causal=True) for each in zip(*parts, strict=True)], dim=2)
print("packed equals separate:", torch.allclose(packed, separate, atol=1e-5))

# The same without a batch axis, as flash-attention has it.
starts = torch.tensor([0, *lengths]).cumsum(0)
flat = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
varlen = attention_varlen(*flat, starts, encoding=rope, causal=True)
print("varlen equals packed:  ", torch.allclose(varlen.transpose(0, 1)[None], packed, atol=1e-5))

crowded = attention(q, k, v, rope, causal=True)
print("without segments:      ", torch.allclose(crowded, separate, atol=1e-5))
