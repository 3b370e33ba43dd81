"""A compiler sees a patched model in no more pieces than the model as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from patch_models import build, inputs, is_encoder_decoder
from torch import Tensor, nn

from ordinate.hf import patch

pytestmark = [
    pytest.mark.plain,  # compilers cannot see through the shape checker
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # BLOOM's GELU
]
close = {"atol": 1e-5, "rtol": 1e-5}
QUICK = ["T5", "BLOOM"]


def compiled(model: nn.Module, given: dict[str, Tensor], **options: Any) -> tuple[Tensor, int]:
    """The logits of a compiled call, and how many graphs it took."""
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.no_grad():
        logits = torch.compile(model, backend=backend, **options)(**given, use_cache=False).logits
    return logits, len(graphs)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", QUICK)
def test_a_patched_model_has_no_more_graphs_than_before(name, mask):
    model = build(name)
    given = inputs(model, mask)
    expected, before = compiled(model, given)
    patch(model, check=False)
    found, after = compiled(model, given, fullgraph=before == 1)
    assert after <= before
    if mask and not is_encoder_decoder(model):
        found, expected = (x[given["attention_mask"].bool()] for x in (found, expected))
    torch.testing.assert_close(found, expected, **close)
