"""Token by token with a cache, or all at once: one answer, whatever the encoding."""

import torch

import ordinate

torch.manual_seed(0)
specs = ["none", "rope", "rope+yarn:factor=4", "rope+dynamic:factor=4", "alibi", "t5", "shaw"]
x = torch.randn(2, 48, 128)

for spec in specs:
    encoding = ordinate.create(spec, d_model=128, num_heads=8, max_positions=32)
    layer = ordinate.MultiHeadAttention(128, num_heads=8, num_kv_heads=2, encoding=encoding)
    cache = ordinate.KVCache()
    # A scaling that depends on the length has to be told the final one to give the final answer.
    outputs = [layer(x[:, :20], cache=cache, lengths=48)]  # the prompt
    outputs += [layer(x[:, i : i + 1], cache=cache, lengths=48) for i in range(20, 48)]
    same = torch.allclose(torch.cat(outputs, dim=1), layer(x, lengths=48), atol=1e-5)
    note = "  (its keys are kept unrotated)" if encoding.length_dependent else ""
    print(f"{spec.split(':')[0]:<13} one by one as all at once: {same}{note}")
