"""A small GPT, short enough to print, that gets positions only from a `PositionEncoding`.

Pre-norm blocks of causal attention and a two-layer perceptron, after GPT-2 (and its short forms), with
RMS norms and no dropout. Nothing here depends on the encoding: `embed` is called once on
the embeddings, and `ordinate.attention` calls `rotate` and `bias` in every layer.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ...attending.api import attention
from ...encoding import PositionEncoding

#: Tokens are bytes.
VOCABULARY = 256


class Transformer(nn.Module):
    """Computes logits of the next byte from bytes.

    Args:
        encoding: One instance, shared by all layers.

    Example:
        >>> model = Transformer(ordinate.RoPE(16), d_model=32, num_layers=2, num_heads=2)
        >>> model(torch.randint(256, (1, 10))).shape
        torch.Size([1, 10, 256])
    """

    def __init__(
        self, encoding: PositionEncoding, *, d_model: int, num_layers: int, num_heads: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, d_model)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(num_layers))
        self.norm = nn.RMSNorm(d_model)
        self.head = nn.Linear(d_model, VOCABULARY, bias=False)
        self.encoding = encoding
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize every weight except the encoding's, which initializes itself."""
        nn.init.normal_(self.head.weight, std=self.head.in_features**-0.5)
        # Embeddings of variance 1, as in the original Transformer, because sinusoids have that size.
        nn.init.normal_(self.tokens.weight, std=1.0)
        for name, weight in self.blocks.named_parameters():
            if name.endswith(("qkv.weight", "up.weight")):
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
            elif name.endswith(("out.weight", "down.weight")):
                nn.init.zeros_(weight)  # at initialization, a block adds zero

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocabulary"]:
        x = self.encoding.embed(self.tokens(tokens))
        for block in self.blocks:
            x = block(x, self.encoding)
        return self.head(self.norm(x))


class Block(nn.Module):
    """Attention, then a perceptron, each with a residual connection."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.RMSNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.perceptron_norm = nn.RMSNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor, encoding: PositionEncoding) -> Tensor:
        normed = self.attention_norm(x)
        # [batch, seq, 3 * d_model] -> three of [batch, heads, seq, head_dim]
        q, k, v = self.qkv(normed).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = attention(q, k, v, encoding, causal=True, x=normed)
        assert isinstance(seen, Tensor)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.perceptron_norm(x))))


def token_losses(
    logits: Float[Tensor, "batch seq vocabulary"], targets: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq"]:
    """The loss of every target in nats, zero where the target is -1 (ignored)."""
    flat = F.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1
    )
    return flat.view(targets.shape)
