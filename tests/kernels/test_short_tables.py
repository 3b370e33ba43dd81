"""Tables that end near: of their tiles few are looked up, and those in parts."""

from __future__ import annotations

import pytest
from fused_cases import Case, Sizes, check

# Triton reads the source of its kernels, which run-time shape checks would have wrapped.
pytestmark = [
    pytest.mark.plain,
    # NumPy tells of the weights of hidden keys, which may be anything before they become 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2"),
]


@pytest.fixture
def parts(monkeypatch):
    """By kernel, how many keys (queries, where keys stay) a tile has, and how many of them are looked up at once."""
    from ordinate.attending.fused import plans as fused_plans
    from ordinate.attending.fused import tiles as fused_tiles

    seen: dict[str, tuple[int, int]] = {}

    def noted(kernel, *rest):
        config = fused_tiles.tile_config(kernel, *rest)
        if kernel != "table":
            seen[kernel] = config["M" if kernel == "keys" else "N"], config["NEAR"]
        return config

    monkeypatch.setattr(fused_plans, "tile_config", noted)
    return seen


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("bias", ["clipped", "row", "row_of_keys", "sum_of_all"])
def test_short_tables_are_looked_up_in_parts(bias, mask, device, parts):
    check(Case(bias, mask, sizes=Sizes(85, 97, heads=2, kv_heads=1), device=str(device)))
    if device.type == "cpu":  # a GPU takes parts where these are quicker
        assert parts.keys() == {"forward", "queries", "keys"}
        assert all(at_once < tile and tile % at_once == 0 for tile, at_once in parts.values())


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("positions", ["gaps", "shuffled", "rows_of_their_own"])
def test_short_tables_at_positions_that_are_data(positions, device):
    check(Case("clipped", "causal", positions, Sizes(85, 97, batch=2), device=str(device)))


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    ("bias", "mask"),
    [
        ("t5_both_ways", "causal"),
        ("clipped", "causal_window"),
        ("clipped", "segments"),
        ("row", "padding"),
    ],
)
def test_where_many_tiles_may_be_looked_up_they_are_whole(bias, mask, device, parts):
    """A table that is long beside the keys or beside a window, and sequences whose length nobody knows."""
    check(Case(bias, mask, sizes=Sizes(85, 97, heads=2, kv_heads=1), device=str(device)))
    assert parts
    assert all(at_once == tile for tile, at_once in parts.values())
