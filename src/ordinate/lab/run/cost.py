"""The operations, bytes and memory that an encoding and a training step need."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...bias.types import LinearBias, RowBias, parts_of
from ...encoding import PositionEncoding
from ..config import RunConfig
from .model import token_losses


def parameters_of(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def added_cost(encoding: PositionEncoding, config: RunConfig) -> tuple[float, float]:
    """Operations and bytes that an encoding adds to the forward pass of one token.

    Counted over all layers, at the training length, with a causal mask, in float32. Operations: one
    addition per channel that `embed` adds to; two products and a sum per channel that `rotate` rotates; per
    visible score (half of all scores), a sum for a table's entry, a product and a sum for a linear bias; for a
    bias that reads content, first its product with the table. Bytes: codes, cos and sin per token, and
    the tensors of a bias once per sequence and layer.

    Example:
        >>> added_cost(ordinate.RoPE(16), RunConfig("rope", d_model=32, num_heads=2, num_layers=1))
        (192.0, 64.0)
    """
    length, heads, layers = config.train_length, config.num_heads, config.num_layers
    head_dim = config.d_model // heads
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, length, config.d_model, generator=rng)
    q, k = (torch.randn(1, heads, length, head_dim, generator=rng) for _ in range(2))
    encoding = encoding.cpu()
    with torch.no_grad():
        added = float((encoding.embed(torch.zeros_like(x)) != 0)[0].any(0).sum())
        rotated = _rotated_channels(encoding, head_dim, heads)
        operations = added + 3 * 2 * rotated * heads * layers  # of queries and of keys
        bytes_moved = 4 * added + 4 * rotated * layers  # half cos, half sin
        seen = heads * (length + 1) / 2
        for part in parts_of(encoding.bias(q, k, x=x)):
            operations += seen * layers * (2 if isinstance(part, LinearBias) else 1)
            if isinstance(part, RowBias):
                rank, distances = part.table.shape[-1], part.table.shape[1]
                operations += 2 * rank * distances * heads * layers
            tables = [tensor for tensor in part.tensors() if tensor.is_floating_point()]
            bytes_moved += sum(4 * tensor.numel() for tensor in tables) / length * layers
    return operations, bytes_moved


def _rotated_channels(encoding: PositionEncoding, head_dim: int, heads: int) -> int:
    """How many channels of a head are rotated: those that depend on another channel, even for tiny angles.

    A NaN in one channel gives NaN in each channel that depends on it.
    """
    marked = torch.zeros(
        head_dim, heads, 2, head_dim
    )  # each row of the batch has NaN in a different channel
    marked.diagonal(dim1=0, dim2=3).fill_(math.nan)
    reached = encoding.rotate(marked, marked)[0][:, 0, -1].isnan()
    return int(reached.fill_diagonal_(False).any(0).sum())


def training_memory(model: nn.Module, tokens: Tensor, targets: Tensor) -> int:
    """The peak memory of a training step in bytes on a CPU, whose allocator has no counter.

    Weights, gradients, the optimizer's two moments, and everything the forward pass saves for the
    backward pass, each storage once.
    """
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        token_losses(model(tokens), targets).sum()
    weights = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return 4 * sum(weights.values()) + sum(n for where, n in saved.items() if where not in weights)


def least_training_memory(config: RunConfig) -> int:
    """A lower bound of the bytes for training, computed before the model is made.

    For every layer its twelve matrices of ``d_model × d_model``, each with its gradient and two moments, and
    for every token and layer twelve vectors of ``d_model`` that the matrices are multiplied with.
    """
    matrices = 12 * config.d_model**2 * config.num_layers
    vectors = 12 * config.d_model * config.num_layers * config.batch * config.train_length
    return 4 * (4 * matrices + vectors)
