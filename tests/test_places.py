"""Where tokens stand is one value: made once per call, the same for all hooks, and known without reading a tensor."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ordinate
from ordinate import positions
from ordinate.attending import api, layer
from ordinate.positions import Places

README = Path(__file__).parents[1] / "README.md"


def _qkv(q_len=5, k_len=7, heads=2, batch=2):
    return [torch.randn(batch, heads, length, 8) for length in (q_len, k_len, k_len)]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(-9, 9), st.data())
@settings(max_examples=60)
def test_places_in_order_say_what_their_tensors_say(q_len, k_len, start, data):
    """Whole and cut, by pairs, by diagonals and one by one."""
    places = Places.in_order(q_len, k_len, start=start)
    q_from, k_from = data.draw(st.integers(0, q_len - 1)), data.draw(st.integers(0, k_len - 1))
    block = places.block(slice(q_from, q_len), slice(k_from, None))
    for some in (places, block):
        told = Places.at(some.queries, some.keys)
        assert told.offset is None
        assert (told.q_len, told.k_len) == (some.q_len, some.k_len)
        assert torch.equal(some.distances(), told.distances())
        assert torch.equal(some.diagonal_distances(), told.diagonal_distances())
        b, q, k = torch.meshgrid(
            torch.arange(1), torch.arange(some.q_len), torch.arange(some.k_len), indexing="ij"
        )
        assert torch.equal(some.distance_at(b, q, k), told.distance_at(b, q, k))
    assert places.aligned
    assert block.aligned == (q_len - q_from - 1 + places.offset + q_from == k_len - 1)


@pytest.mark.parametrize("kind", ["in order", "given", "given, with an offset"])
def test_places_travel_through_an_operator_as_tensors_integers_and_a_word(kind):
    at = torch.arange(5)
    places = {
        "in order": Places.in_order(3, 5, start=4),
        "given": Places.at(at * 2, at),
        "given, with an offset": Places.at(at % 3, at % 3, offset=0),
    }[kind]
    integers, word = places.flattened()
    again = Places.rebuild(word, iter(places.given), iter(integers))
    assert vars(again) == vars(places)


def test_every_hook_is_given_the_places_of_the_call_and_resolve_returns_them():
    seen = []

    class Watches(ordinate.PositionEncoding):
        def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
            seen.append(positions.resolve(q, k, q_positions, k_positions))
            return q, k

        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            seen.append(positions.resolve(q, k, q_positions, k_positions))

    both = ordinate.Combined(Watches(), ordinate.Combined(Watches(), ordinate.RoPE(8)))
    ordinate.attention(*_qkv(), both)
    assert len(seen) == 4
    assert len({id(places) for places in seen}) == 1


def test_no_tensor_of_positions_is_made_where_they_were_left_out(monkeypatch):
    def refuse(self):
        raise AssertionError("somebody asked for a tensor")

    q, k, v = _qkv()
    encoding = ordinate.Combined(ordinate.RoPE(8), ordinate.ALiBi(2))
    expected = ordinate.attention(q, k, v, encoding, causal=True)
    monkeypatch.setattr(Places, "queries", property(refuse))
    monkeypatch.setattr(Places, "keys", property(refuse))
    torch.testing.assert_close(ordinate.attention(q, k, v, encoding, causal=True), expected)


@pytest.mark.parametrize("spec", ["alibi", "t5", "shaw", "rope+alibi", "rope+t5"])
def test_a_cached_step_is_as_much_in_order_as_a_first_pass(spec, monkeypatch):
    """So the kernels read no positions, and the diagonals of the bias are known without a look."""
    made = []
    call = api.attention

    def noted(*tensors, **options):
        made.extend(api.parts_of(options.get("bias")))
        return call(*tensors, **options)

    monkeypatch.setattr(layer, "attention", noted)
    encoding = ordinate.create(spec, d_model=16, num_heads=2)
    attending, cache = ordinate.MultiHeadAttention(16, 2, encoding=encoding), ordinate.KVCache()
    x = torch.randn(2, 9, 16)
    steps = [attending(x[:, part], cache=cache) for part in (slice(6), slice(6, 7), slice(7, 9))]
    assert len(made) == 3
    assert all(part.places.aligned and part.places.is_in_order for part in made)
    assert cache.positions is None
    torch.testing.assert_close(torch.cat(steps, 1), attending(x))


def test_positions_given_after_some_were_left_out_join_them():
    encoding = ordinate.create("rope+alibi", d_model=16, num_heads=2)
    attending, cache = ordinate.MultiHeadAttention(16, 2, encoding=encoding), ordinate.KVCache()
    x, at = torch.randn(2, 6, 16), torch.tensor([0, 1, 2, 7, 8, 9])
    steps = [attending(x[:, :3], cache=cache), attending(x[:, 3:], at[3:], cache=cache)]
    assert cache.positions.tolist() == [at.tolist()]
    torch.testing.assert_close(torch.cat(steps, 1), attending(x, at))


def test_biases_of_other_lengths_do_not_merge_into_one():
    """Their sum is refused where it is used."""
    q, k, v = _qkv(5, 5)
    alibi = ordinate.ALiBi(2, symmetric=True)
    bias = alibi.bias(q, k) + alibi.bias(q[:, :, :3], k[:, :, :3])
    with pytest.raises(ValueError, match=r"bias must be made for batch, queries and keys \[2, 5, 5\]"):
        ordinate.attention(q, k, v, bias=bias)


@pytest.mark.parametrize("hook", ["rotate", "bias"])
def test_an_encoding_along_one_axis_is_that_encoding_at_that_coordinate(hook):
    encoding = ordinate.RoPE(8) if hook == "rotate" else ordinate.ALiBi(2, symmetric=True)
    grid, (q, k, v) = positions.grid(2, 3), _qkv(6, 6)
    for axis in (0, 1):
        along = ordinate.Along(encoding, axis, axes=2)
        found = ordinate.attention(q, k, v, along, q_positions=grid)
        torch.testing.assert_close(
            found, ordinate.attention(q, k, v, encoding, q_positions=grid[axis]), rtol=0, atol=0
        )
    learned, x = ordinate.Learned(4, 8), torch.randn(1, 6, 8)
    along = ordinate.Along(learned, 1)
    torch.testing.assert_close(along.embed(x, grid), learned.embed(x, grid[1]), rtol=0, atol=0)


def test_a_rotation_of_two_axes_and_a_bias_of_one_combine():
    """A part of one axis that names none is refused."""
    grid, (q, k, v) = positions.grid(2, 3), _qkv(6, 6)
    spec = "rope:sections=(2,2)+alibi:symmetric=True"
    both = ordinate.create(spec + ",axis=1", head_dim=8, num_heads=2)
    assert both.axes == 2
    rope, alibi = ordinate.RoPE(8, sections=(2, 2)), ordinate.ALiBi(2, symmetric=True)
    rotated = rope.rotate(q, k, grid)
    bias = alibi.bias(q, k, grid[1])
    for impl in ("reference", "chunked"):
        found = ordinate.attention(q, k, v, both, q_positions=grid, impl=impl)
        torch.testing.assert_close(found, ordinate.attention(*rotated, v, bias=bias, impl=impl))
    refused = ordinate.create(spec, head_dim=8, num_heads=2)
    with pytest.raises(
        ValueError, match=r"q_positions must be \[seq\] or \[batch, seq\], got \[2, 1, 6\]"
    ):
        ordinate.attention(q, k, v, refused, q_positions=grid)


@pytest.mark.parametrize("spec", ["rope:axis=0", "alibi:symmetric=True,axis=1", "learned:axis=1"])
def test_an_encoding_along_one_axis_is_verified_shown_and_drawn(spec):
    encoding = ordinate.create(spec, d_model=32, num_heads=4, max_positions=64)
    report = ordinate.verify(encoding)
    assert report.ok, str(report)
    plain = spec.replace(",axis=1", "").replace(":axis=1", "").replace(":axis=0", "")
    assert ordinate.show(spec).steps == ordinate.show(plain).steps
    assert ordinate.plots.picture(spec).panels


def test_a_combination_says_what_its_parts_were_made_for():
    both = ordinate.Combined(ordinate.Learned(64, 16), ordinate.RoPE(8), ordinate.ALiBi(2))
    assert (both.max_positions, both.d_model, both.head_dim, both.num_heads) == (64, 16, 8, 2)
    assert ordinate.NoPE().num_heads is None


def _readme_encoding():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "class LogBias" in block]
    scope = {"ordinate": ordinate, "torch": torch}
    exec(block.split("\n\n\nencoding")[0], scope)
    return scope["LogBias"]


@pytest.mark.parametrize("how", ["left out", "packed", "cached"])
def test_what_the_readme_builds_is_launched_as_what_t5_builds(how):
    pytest.importorskip("triton")
    from ordinate.attending.fused import terms as fused
    from ordinate.attending.fused.call import Launch

    t5 = ordinate.T5Bias(8)
    lo, rows = t5._lo, t5._rows
    assert lo == 0
    of_readme = _readme_encoding()(8, max_distance=len(rows) - 1)
    q, k, v = _qkv(4 if how == "cached" else 256, 256, heads=8, batch=1)
    found = []
    for encoding in (of_readme, t5):
        if how == "packed":
            with pytest.MonkeyPatch.context() as patch:
                run = Mock(return_value=q)
                patch.setattr(api, "run", run)
                starts = torch.tensor([0, 100, 256])
                packed = (x[0].transpose(0, 1) for x in (q, k, v))
                ordinate.attention_varlen(*packed, starts, encoding=encoding, causal=True)
            call, _ = run.call_args.args
        else:
            call = api._prepare(q, k, v, encoding, causal=True)
        launch = Launch(*fused.operator_inputs(call))
        assert launch.aligned
        assert launch.q_positions is None
        found.append(launch.signature())
    assert found[0] == found[1]
