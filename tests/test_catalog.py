"""The catalog names every encoding, and one line of text makes any of them."""

from __future__ import annotations

import pytest
import torch

import ordinate
from ordinate import catalog, create, scaling

SIZES = {"d_model": 32, "num_heads": 4, "max_positions": 64}


def test_every_encoding_the_package_offers_is_in_the_catalog():
    offered = {
        value
        for value in vars(ordinate).values()
        if isinstance(value, type) and issubclass(value, ordinate.PositionEncoding)
    } - {ordinate.Combined, ordinate.Along}
    scalings = {
        value
        for value in vars(scaling).values()
        if isinstance(value, type) and issubclass(value, scaling.Scaling)
    } - {scaling.Scaling}
    assert {entry.cls for entry in catalog.values()} == offered | scalings


@pytest.mark.parametrize("name", catalog)
def test_entries_are_complete(name: str):
    entry = catalog[name]
    assert entry.name == name
    assert entry.paper.startswith("arXiv:")
    assert 2017 <= entry.year <= 2026
    assert entry.formula
    assert entry.used_by


@pytest.mark.parametrize("name", [name for name, entry in catalog.items() if not entry.is_scaling])
def test_every_encoding_is_made_from_its_name(name: str):
    encoding = create(name, **SIZES)
    assert type(encoding) is catalog[name].cls
    assert bool(list(encoding.parameters())) == catalog[name].learned


SCALINGS = {
    "linear": "linear:factor=4",
    "ntk": "ntk:factor=4",
    "dynamic": "dynamic:factor=4",
    "yarn": "yarn:factor=4",
    "longrope": "longrope:short_factor=(1,1,1,1),long_factor=(1,2,3,4),factor=4",
    "llama3": "llama3:factor=8,low_freq_factor=1,high_freq_factor=4",
    "proportional": "proportional:fraction=0.5",
}


def test_every_scaling_is_tried():
    assert set(SCALINGS) == {name for name, entry in catalog.items() if entry.is_scaling}


@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_modifies_the_rope_before_it(name: str):
    rope = create(f"rope+{SCALINGS[name]}", **SIZES)
    assert isinstance(rope, ordinate.RoPE)
    assert type(rope.scaling) is catalog[name].cls
    assert getattr(rope.scaling, "original_max_positions", 64) == 64  # from max_positions


def test_options_ride_in_the_spec():
    rope = create("rope: base=1e6, layout=interleaved, rotary_dim=4", **SIZES)
    assert isinstance(rope, ordinate.RoPE)
    assert (rope.base, rope.layout, rope.rotary_dim, rope.head_dim) == (1e6, "interleaved", 4, 8)
    sections = create("rope:sections=(2,1,1),section_layout=interleaved", **SIZES)
    assert isinstance(sections, ordinate.RoPE)
    assert sections.sections == (2, 1, 1)
    t5 = create("t5:bidirectional=true,num_buckets=16", **SIZES)
    assert isinstance(t5, ordinate.T5Bias)
    assert (t5.bidirectional, t5.num_buckets) == (True, 16)


def test_exponents_with_a_plus_are_numbers_not_sums():
    rope = create("rope:base=1e+6", **SIZES)
    assert isinstance(rope, ordinate.RoPE)
    assert rope.base == 1e6


def test_the_specs_own_original_length_wins():
    rope = create("rope+yarn:factor=4,original_max_positions=2048", **SIZES)
    assert isinstance(rope, ordinate.RoPE)
    assert isinstance(rope.scaling, scaling.YaRN)
    assert rope.scaling.original_max_positions == 2048


def test_a_plus_between_encodings_combines_them():
    both = create("rope+linear:factor=2+alibi:symmetric=true", **SIZES)
    assert isinstance(both, ordinate.Combined)
    rope, alibi = both.encodings
    assert isinstance(rope, ordinate.RoPE)
    assert rope.scaling == scaling.Linear(2)
    assert isinstance(alibi, ordinate.ALiBi)
    assert alibi.symmetric
    q = k = v = torch.randn(1, 4, 6, 8)
    assert ordinate.attention(q, k, v, both).shape == q.shape


def test_head_dim_follows_from_d_model_and_heads():
    assert create("rope", d_model=64, num_heads=4).head_dim == 16
    assert create("rope", d_model=64, num_heads=4, head_dim=32).head_dim == 32


@pytest.mark.plain
@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("rop", r"unknown encoding 'rop' .* did you mean .*'rope'"),
        ("rope:bas=1e6", r"unknown option 'bas' of 'rope' .* did you mean 'base'"),
        ("rope:base", r"option must be written name=value .* got 'base'"),
        ("rope:base=1,base=2", r"option 'base' must be given once"),
        ("yarn:factor=4", r"scaling 'yarn' must follow rope .* got nothing"),
        ("alibi+yarn:factor=4", r"scaling 'yarn' must follow rope .* got alibi"),
        ("rope+linear:factor=2+ntk:factor=2", r"rope must have one scaling .* 'ntk'"),
        ("rope+yarn", r"'yarn' in spec 'rope\+yarn' needs factor"),
        ("", r"spec must be text .* got ''"),
        ("none:x=1", r"unknown option 'x' of 'none' .* it has no options"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec: str, match: str):
    with pytest.raises(ValueError, match=match):
        create(spec, **SIZES)


@pytest.mark.plain
def test_a_missing_dimension_is_named():
    with pytest.raises(ValueError, match=r"'alibi' in spec 'alibi' needs num_heads"):
        create("alibi", head_dim=8)
    with pytest.raises(
        ValueError, match=r"needs original_max_positions; give it as create\(…, max_positions=…\)"
    ):
        create("rope+yarn:factor=4", head_dim=8)
