"""An encoding of your own: one method, and everything else works with it."""

import torch

import ordinate


class LogBias(ordinate.PositionEncoding):
    """Lower the logits by rate · log(1 + distance), with one learned rate a head."""

    claims = frozenset({"shift invariance", "decay with distance"})

    def __init__(self, num_heads, max_distance=4096):
        super().__init__()
        self.num_heads, self.max_distance = num_heads, max_distance
        self.rate = torch.nn.Parameter(torch.linspace(0.5, 2.0, num_heads))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = ordinate.positions.resolve(q, k, q_positions, k_positions)
        distances = torch.arange(self.max_distance + 1, device=q.device)
        table = -self.rate[:, None] * torch.log1p(distances)
        return ordinate.DistanceBias(table, places, lo=0)


encoding = LogBias(num_heads=8)
q, k, v = torch.randn(3, 1, 8, 1000, 64)
ordinate.attention(q, k, v, encoding, causal=True).sum().backward()
print("gradient of the rates:", encoding.rate.grad.shape, "through", end=" ")
print(ordinate.explain(q, k, v, encoding, causal=True).chosen)
print(ordinate.verify(encoding))
