"""A checkpoint trained with neighbouring pairs, used with pairs half a head apart."""

import torch

from ordinate import MultiHeadAttention, RoPE, to_half

HEAD_DIM = 64
torch.manual_seed(0)
trained = MultiHeadAttention(512, 8, num_kv_heads=2, encoding=RoPE(HEAD_DIM, layout="interleaved"))
ours = MultiHeadAttention(512, 8, num_kv_heads=2, encoding=RoPE(HEAD_DIM, layout="half"))
trained, ours = trained.double(), ours.double()
x = torch.randn(1, 100, 512, dtype=torch.float64)


@torch.no_grad()
def error():
    """How far off the output is, to the digits that matter."""
    return float((ours(x) - trained(x)).abs().max().round(decimals=12))


weights = trained.state_dict()
ours.load_state_dict(weights)
print(f"weights as they are, half layout:    {error():.1e}   loads without a word, and is wrong")

for name in ("q_proj.weight", "k_proj.weight"):  # never the values
    weights[name] = to_half(weights[name], head_dim=HEAD_DIM)
ours.load_state_dict(weights)
print(f"converted weights, half layout:      {error():.1e}")
