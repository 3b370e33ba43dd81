"""Each property goes red on an encoding built to break it, and green on every entry of the catalog."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import ordinate
from ordinate import Combined, LinearBias, PositionEncoding, RoPE, Sinusoidal
from ordinate.bias.types import DistanceBias
from ordinate.entries import example_specs
from ordinate.positions import Places, as_positions, resolve, sequential
from ordinate.rotate.rotation import Rotation
from ordinate.verification.order import _closest
from ordinate.verification.properties import PROPERTIES, claims_of
from ordinate.verification.report import Status

SIZES = {"d_model": 16, "num_heads": 2, "head_dim": 8}


class Embeds(PositionEncoding):
    """x + code(position), with whatever code a test wants."""

    def __init__(self, code, *claims: str) -> None:
        super().__init__()
        self.code, self.claims = code, frozenset(claims)

    def embed(self, x, positions=None):
        if positions is None:
            positions = sequential(x.shape[1])
        positions = as_positions(
            "positions", positions, batch=x.shape[0], seq=x.shape[1], device=x.device
        )
        channels = torch.arange(x.shape[-1], dtype=torch.float64)
        return (x.double() + self.code(positions[..., None].double(), channels)).to(x.dtype)


class Turns(PositionEncoding):
    """RoPE with whatever angles a test wants."""

    def __init__(self, angles, *claims: str, factor: float = 1.0) -> None:
        super().__init__()
        self.angles, self.claims, self.factor = angles, frozenset(claims), factor

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        turned = []
        places = resolve(q, k, q_positions, k_positions)
        for x, positions in ((q, places.queries), (k, places.keys)):
            pairs = torch.arange(x.shape[-1] // 2, dtype=torch.float64)
            angles = self.angles(positions[..., None].double(), pairs)
            turned.append(Rotation(angles, self.factor, "half", x.shape[-1]).apply(x))
        return tuple(turned)


class Biases(PositionEncoding):
    """Whatever function of the distance and the head a test wants."""

    def __init__(self, function, *claims: str) -> None:
        super().__init__()
        self.function, self.claims = function, frozenset(claims)

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions)
        queries, keys = places.queries, places.keys
        lo = int(queries.amin() - keys.amax())
        hi = int(queries.amax() - keys.amin())
        distances = torch.arange(lo, hi + 1, dtype=torch.float64)
        heads = torch.arange(1, q.shape[1] + 1, dtype=torch.float64)[:, None]
        table = self.function(distances, heads) + torch.zeros(q.shape[1], len(distances)).double()
        return DistanceBias(table, Places.at(queries, keys), lo=lo)


def _tones(positions, channels):
    return torch.sin(positions * 10000 ** (-channels / 16) + channels)


def _angles(positions, pairs):
    return positions * 100 ** (-pairs / 4)


class CountsCalls(Embeds):
    def embed(self, x, positions=None):
        self.calls = getattr(self, "calls", 0) + 1
        return super().embed(x, positions) + self.calls


class KeepsTheFirstTable(Embeds):
    """Positions in the dtype of the first call serve all that follow."""

    table = None

    def embed(self, x, positions=None):
        if self.table is None:
            self.table = torch.arange(10000).to(x.dtype).double()
        return x + self.table[positions].sin().to(x.dtype)[..., None]


class WritesOnEmbeddings(Embeds):
    def embed(self, x, positions=None):
        x += super().embed(x, positions) - x
        return x


class WritesOnQueries(Turns):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        turned, k = super().rotate(q, k, q_positions, k_positions)
        return q.copy_(turned), k


class Lies(RoPE.__mro__[1]):  # RoPE is final; a user would wrap it
    claims = frozenset({"wavelengths"})

    def __init__(self) -> None:
        super().__init__()
        self.rope = RoPE(8)

    def inv_freq(self):
        return self.rope.inv_freq() * 1.01

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        return self.rope.rotate(q, k, q_positions, k_positions)


class Table(PositionEncoding):
    """A trained bias whose row for each distance a test chooses."""

    claims = frozenset({"bucket coverage"})

    def __init__(self, rows: int, row_of) -> None:
        super().__init__()
        self.weight, self.row_of = nn.Parameter(torch.randn(rows, 2)), row_of

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions)
        queries, keys = places.queries, places.keys
        lo, hi = int(queries.amin() - keys.amax()), int(queries.amax() - keys.amin())
        table = self.weight.t()[:, self.row_of(torch.arange(lo, hi + 1))]
        return DistanceBias(table, Places.at(queries, keys), lo=lo)


def _unhalved_buckets(distances):
    """As a tutorial has it: both directions, the buckets not halved first, the overflow clamped."""
    return ordinate.bias.t5.t5_buckets(distances, 64, 128, bidirectional=True).clamp(max=31)


class IgnoresPositions(Turns):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        return super().rotate(q, k)


class CountsFromZero(Embeds):
    def embed(self, x, positions=None):
        return super().embed(x)


class LooksAtTheRow(Turns):
    """Frequencies that depend on the largest position in the call, in silence."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        longest = float(resolve(q, k, q_positions, k_positions).queries.amax()) + 1
        self.angles = lambda positions, pairs: _angles(positions, pairs) / longest
        return super().rotate(q, k, q_positions, k_positions)


class LowPrecisionPositions(PositionEncoding):
    """Positions formed in the dtype of the activations."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        low = q_positions.to(q.dtype).double()[None, :, None]
        angles = low * 100 ** (-torch.arange(q.shape[-1] // 2, dtype=torch.float64) / 4)
        rotation = Rotation(angles, 1.0, "half", q.shape[-1])
        return rotation.apply(q), rotation.apply(k)


class LowPrecisionBuffer(PositionEncoding):
    """A table of codes kept as a buffer, which ``.to(bfloat16)`` spoils."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("where", torch.arange(10000.0), persistent=False)

    def embed(self, x, positions=None):
        return (x + self.where[positions].float().sin()[..., None]).to(x.dtype)


class LowPrecisionSlopes(PositionEncoding):
    """slope · key position in the dtype of the activations, as some models have it."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        keys = resolve(q, k, q_positions, k_positions).keys
        slopes = torch.tensor([0.5, 0.25], dtype=q.dtype)[:, None]
        return ordinate.KeyBias((slopes * keys.to(q.dtype))[None])


class ShortTable(PositionEncoding):
    """64 codes; what happens beyond is the test's."""

    max_positions = 64

    def __init__(self, beyond) -> None:
        super().__init__()
        self.weight, self.beyond = nn.Parameter(torch.randn(64, 16)), beyond

    def embed(self, x, positions=None):
        return x + self.weight[self.beyond(positions)]


def _refuse_vaguely(positions):
    if bool((positions > 63).any()):
        raise ValueError("that does not work")
    return positions


def _nan_beyond(positions, channels):
    return torch.where(positions < 4096, _tones(positions, channels), math.nan)


BROKEN = [
    ("permutation equivariance", "constant code", lambda: Embeds(lambda p, c: c + 1)),
    ("uniqueness", "period of 16",
     lambda: Embeds(lambda p, c: torch.sin(2 * math.pi * p / 16 + c), "uniqueness")),
    ("uniqueness", "whole turns", lambda: Turns(lambda p, i: p * 2 * math.pi * (i + 1), "uniqueness")),
    ("determinism", "counts calls", lambda: CountsCalls(_tones)),
    ("determinism", "keeps a low table", lambda: KeepsTheFirstTable(_tones)),
    ("inputs untouched", "embed in place", lambda: WritesOnEmbeddings(_tones)),
    ("inputs untouched", "rotate in place", lambda: WritesOnQueries(_angles)),
    ("boundedness", "twice a sine", lambda: Embeds(lambda p, c: 2 * _tones(p, c), "boundedness")),
    ("boundedness", "grows late", lambda: Embeds(lambda p, c: p / 1e6 * (c + 1), "boundedness")),
    ("shift invariance", "absolute code", lambda: Embeds(_tones, "shift invariance")),
    ("shift invariance", "square angles",
     lambda: Turns(lambda p, i: _angles(p * p, i), "shift invariance")),
    ("linear shift map", "a chirp", lambda: Embeds(lambda p, c: torch.sin(p * p / (c + 50)), "linear shift map")),
    ("norm preservation", "a factor", lambda: Turns(_angles, "norm preservation", factor=1.1)),
    ("decay with distance", "rope", lambda: Turns(_angles, "decay with distance")),
    ("decay with distance", "level", lambda: Biases(lambda d, h: 0 * d, "decay with distance")),
    ("decay with distance", "one head rises",
     lambda: Biases(lambda d, h: -d * (1.5 - h), "decay with distance")),
    ("wavelengths", "a chirp", lambda: Turns(lambda p, i: _angles(p, i) + p * p * 1e-3, "wavelengths")),
    ("wavelengths", "another inv_freq", Lies),
    ("slopes", "a root", lambda: Biases(lambda d, h: -h * d.abs().sqrt(), "slopes")),
    ("slopes", "one for all", lambda: Biases(lambda d, h: -d + 0 * h, "slopes")),
    ("slopes", "uphill", lambda: Biases(lambda d, h: d * h, "slopes")),
    ("bucket coverage", "not halved", lambda: Table(64, _unhalved_buckets)),
    ("bucket coverage", "modulo", lambda: Table(32, lambda d: d % 32)),
    ("bucket coverage", "overflow", lambda: Table(32, lambda d: d.abs())),
    ("bucket coverage", "no table", lambda: Biases(lambda d, h: -d * h, "bucket coverage")),
    ("decode equals prefill", "ignores positions", lambda: IgnoresPositions(_angles)),
    ("decode equals prefill", "looks at the row", lambda: LooksAtTheRow(_angles)),
    ("packed equals separate", "counts from zero", lambda: CountsFromZero(_tones)),
    ("packed equals separate", "looks at the row", lambda: LooksAtTheRow(_angles)),
    ("dtype collisions", "low positions", LowPrecisionPositions),
    ("dtype collisions", "low buffer", LowPrecisionBuffer),
    ("dtype collisions", "low slopes", LowPrecisionSlopes),
    ("dtype collisions", "low slopes beside rope", lambda: Combined(LowPrecisionSlopes(), RoPE(8))),
    ("past training length", "clamped table", lambda: ShortTable(lambda p: p.clamp(max=63))),
    ("past training length", "wrapped table", lambda: ShortTable(lambda p: p % 64)),
    ("past training length", "index error", lambda: ShortTable(lambda p: p)),
    ("past training length", "vague error", lambda: ShortTable(_refuse_vaguely)),
    ("past training length", "starts over", lambda: Embeds(lambda p, c: _tones(p % 4096, c))),
    ("past training length", "NaN", lambda: Embeds(_nan_beyond)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make"), [(n, m) for n, _, m in BROKEN], ids=[f"{n}: {why}" for n, why, _ in BROKEN]
)
def test_a_property_fails_where_it_is_broken(name, make):
    report = ordinate.verify(make(), properties=name, **SIZES)
    assert report[name].status is Status.FAILS, str(report)
    assert not report.ok


def test_every_property_has_an_encoding_that_breaks_it():
    from test_verify_wrong import FOUND, OTHERS

    assert {name for name, _, _ in BROKEN} | {name for _, name, _ in FOUND + OTHERS} == set(PROPERTIES)


@pytest.mark.parametrize("name", [n for n, p in PROPERTIES.items() if not p.required])
def test_the_same_measurement_does_not_fail_who_does_not_claim_it(name):
    makers = [make for broken, why, make in BROKEN if broken == name and why != "overflow"]
    for make in makers:
        encoding = make()
        encoding.claims = frozenset()
        result = ordinate.verify(encoding, properties=name, **SIZES)[name]
        assert result.status in (Status.NOT_CLAIMED, Status.NOT_APPLICABLE), result
        assert result.holds is not True


@pytest.mark.parametrize(("head_dim", "heads", "length"), [(8, 3, 64), (6, 2, 33)], ids=["8x3", "6x2"])
@pytest.mark.parametrize("name", example_specs(8))
def test_every_catalog_entry_has_what_it_claims(name, head_dim, heads, length):
    sizes = {"head_dim": head_dim, "num_heads": heads, "d_model": head_dim * heads}
    encoding = ordinate.create(example_specs(head_dim)[name], max_positions=length, **sizes)
    report = ordinate.verify(encoding, train_length=length, **sizes)
    assert report.ok, str(report)
    assert {result.name for result in report} == set(PROPERTIES)
    held = {result.name for result in report if result.status is Status.HOLDS}
    assert held >= claims_of(encoding)


OPTIONS = [
    "sinusoidal:layout=half,endpoint=True", "sinusoidal:offset=2", "rope:layout=interleaved",
    "rope:rotary_dim=4", "rope:sections=(2,1,1)", "rope:base=1e6", "alibi:symmetric=True",
    "alibi:trainable=True", "t5:bidirectional=True", "t5:num_buckets=8,max_distance=20",
    "clipped:max_distance=1", "shaw:max_distance=3,values=True", "rope+alibi", "rope+yarn:factor=4+alibi",
    "sinusoidal+rope", "learned+rope", "learned+t5", "alibi+t5", "alibi+alibi", "none+rope",
    "rope+dynamic:factor=2+shaw",
]  # fmt: skip


@pytest.mark.parametrize("spec", OPTIONS)
def test_options_and_combinations_have_what_they_claim(spec):
    encoding = ordinate.create(spec, max_positions=128, d_model=32, num_heads=4)
    report = ordinate.verify(encoding)
    assert report.ok, str(report)


def test_a_combination_claims_what_its_parts_amount_to():
    def claims(spec):
        return claims_of(ordinate.create(spec, d_model=32, num_heads=4, max_positions=64))

    rope, alibi, none = claims("rope"), claims("alibi"), frozenset()
    assert claims("rope+alibi") == rope | alibi - {"decay with distance"}
    assert claims("alibi+alibi") == {"shift invariance", "decay with distance"}
    assert claims("alibi+t5") == {"shift invariance"}
    assert "shift invariance" not in claims("sinusoidal+rope")
    assert claims("none+rope") == rope
    assert claims("none+none") == none


def test_rope_does_not_claim_decay_and_says_where_it_rises():
    result = ordinate.verify(RoPE(64), properties="decay")["decay with distance"]
    assert result.status is Status.NOT_CLAIMED
    distances = torch.arange(4096, dtype=torch.float64)[:, None]
    curve = (distances * 10000 ** (-torch.arange(32) / 32)).cos().mean(dim=1)
    rises = (curve.diff() > 0).nonzero().flatten() + 1
    assert result.value == len(rises)
    assert f"{len(rises)} of 4095 steps rise, the first at distance {int(rises[0])}; " in result.figure
    assert f"{curve[256]:.2f} of the score is left at 256, {curve[4095]:.2f} at 4095" in result.figure


def test_wavelengths_of_base_1e6_are_those_of_the_formula():
    result = ordinate.verify(RoPE(64, base=1e6), properties="wavelengths")["wavelengths"]
    assert result.status is Status.HOLDS
    torch.testing.assert_close(result.value, 2 * math.pi * 1e6 ** (62 / 64), rtol=1e-6, atol=0)
    # 1e6^(2i/64)·2π <= 4096 for i <= 15: 16 of 32 pairs, half of them.
    assert "50% turn within 4096" in result.figure


def test_untrained_angles_of_rope_are_the_pairs_that_do_not_finish_a_turn():
    result = ordinate.verify(RoPE(64), properties="past")["past training length"]
    slow = [i for i in range(32) if 2 * math.pi * 10000 ** (i / 32) > 4096]
    assert result.value == len(slow) == 9
    stretched = RoPE(64, scaling=ordinate.scaling.Linear(4))
    assert ordinate.verify(stretched, properties="past")["past training length"].value == 0


def test_alibi_slopes_and_t5_buckets_are_counted():
    slopes = ordinate.verify(ordinate.ALiBi(8), properties="slopes")["slopes"]
    assert slopes.value == 0.5
    assert slopes.figure == "8 straight lines, 0.00391 to 0.5 per position"
    causal = ordinate.verify(ordinate.T5Bias(8), properties="bucket")["bucket coverage"]
    assert causal.figure == "32 of 32 rows used; 16 distances alone, 113+ share"


def test_t5_in_both_directions_has_a_row_that_nobody_reads():
    both = ordinate.T5Bias(8, bidirectional=True)
    result = ordinate.verify(both, properties="bucket")["bucket coverage"]
    assert result.status is Status.NOT_CLAIMED
    assert result.figure == "31 of 32 rows used; 8 distances alone, 91+ share"
    assert 16 not in both.buckets(torch.arange(-5000, 5001))


def test_yarn_stretches_lengths_and_does_not_claim_otherwise():
    yarn = RoPE(64, scaling=ordinate.scaling.YaRN(4, 2048))
    result = ordinate.verify(yarn, properties="norm")["norm preservation"]
    assert result.status is Status.NOT_CLAIMED
    torch.testing.assert_close(result.value, 0.1 * math.log(4), rtol=1e-9, atol=0)
    assert "norm preservation" in RoPE(64).claims


def test_learned_refuses_what_it_has_no_row_for():
    result = ordinate.verify(ordinate.Learned(100, 16), properties="past")["past training length"]
    assert result.status is Status.HOLDS
    assert "max_positions=100), got 100" in result.figure


def test_symmetric_distances_tell_order_too():
    symmetric = ordinate.verify(ordinate.ALiBi(4, symmetric=True), properties="permutation")
    assert symmetric.ok


def test_a_good_encoding_of_a_user_passes_with_sizes_from_its_attributes():
    class Recency(PositionEncoding):
        claims = frozenset({"shift invariance", "decay with distance"})

        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 3

        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            places = resolve(q, k, q_positions, k_positions)
            return LinearBias(torch.ones(q.shape[1]).double(), places, symmetric=True)

    report = ordinate.verify(Recency())
    assert report.ok, str(report)
    assert report.setting.num_heads == 3
    assert report.name == "Recency"
    assert report["slopes"].status is Status.NOT_CLAIMED


def test_a_table_still_at_zero_is_not_taken_for_blindness():
    encoding = Table(65, lambda distances: distances.clamp(-32, 32) + 32)
    nn.init.zeros_(encoding.weight)
    report = ordinate.verify(encoding, **SIZES)
    assert report.ok, str(report)
    assert not encoding.weight.any()


def test_a_hook_that_raises_is_a_failure_with_its_message():
    class Raises(PositionEncoding):
        def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
            raise RuntimeError("no rotation today\nnor tomorrow")

    report = ordinate.verify(Raises(), properties=["uniqueness", "norm", "decode"])
    assert not report.ok
    assert {result.figure for result in report} == {"RuntimeError: no rotation today nor tomorrow"}


def test_heads_of_a_tensor_parallel_slice_are_inferred():
    report = ordinate.verify(ordinate.ALiBi(16, heads=slice(4, 8)))
    assert report.ok, str(report)
    assert report.setting.num_heads == 4


def test_measuring_leaves_encoding_and_random_numbers_as_they_were():
    encoding = ordinate.Learned(64, 16)
    before = encoding.weight.detach().clone()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = ordinate.verify(encoding)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    torch.testing.assert_close(encoding.weight.detach(), before, rtol=0, atol=0)
    assert encoding.weight.dtype == torch.float32
    assert encoding.training
    assert ordinate.verify(encoding).to_dict() == first.to_dict()


def test_report_is_a_sequence_a_table_and_json():
    report = ordinate.verify(Sinusoidal(16))
    assert len(report) == len(list(report)) == len(PROPERTIES)
    assert report[0] is report["permutation equivariance"]
    lines = str(report).splitlines()
    assert lines[0].startswith("Sinusoidal  ")
    assert any("✓ linear shift map" in line and "holds" in line for line in lines)
    assert max(map(len, lines)) <= 110
    parsed = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert parsed["ok"] is True
    assert [row["property"] for row in parsed["results"]] == list(PROPERTIES)
    with pytest.raises(KeyError, match="no such"):
        report["no such"]


def test_properties_are_found_by_their_beginning_and_kept_in_order():
    report = ordinate.verify(RoPE(8), properties=["shift-inv", "UNIQ", "packed ≡ separate"])
    assert [result.name for result in report] == [
        "uniqueness", "shift invariance", "packed equals separate",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_encoding_held_in_any_dtype_is_measured(dtype):
    report = ordinate.verify(ordinate.Shaw(8, 4).to(dtype))
    assert report.ok, str(report)


def test_closest_pair_is_found_across_blocks():
    points = torch.randn(2500, 3, dtype=torch.float64)
    points[2400] = points[17] + 1e-6
    torch.testing.assert_close(_closest(points), 1e-6 * math.sqrt(3), rtol=1e-6, atol=0)


@pytest.mark.plain
def test_unknown_properties_and_claims_are_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown property 'shft'; did you mean 'shift invariance'"):
        ordinate.verify(RoPE(8), properties=["shft"])
    with pytest.raises(ValueError, match=r"'dec'; it could be 'decay with distance' or 'decode equals"):
        ordinate.verify(RoPE(8), properties="dec")
    with pytest.raises(
        ValueError, match=r"claims of Embeds must be properties, got 'uniquenes'; did you"
    ):
        ordinate.verify(Embeds(_tones, "uniquenes"))
    with pytest.raises(TypeError, match=r"encoding must be a PositionEncoding or a spec, got int"):
        ordinate.verify(7)
    with pytest.raises(ValueError, match=r"head_dim must be at least 1, got 0"):
        ordinate.verify(RoPE(8), head_dim=0)


def test_a_spec_is_verified_as_the_encoding_it_names():
    properties = ["norm preservation", "wavelengths"]
    named = ordinate.verify(
        "rope+yarn:factor=4", properties=properties, head_dim=8, num_heads=2, train_length=64
    )
    rope = ordinate.create("rope+yarn:factor=4", head_dim=8, max_positions=64)
    given = ordinate.verify(rope, properties=properties, head_dim=8, num_heads=2, train_length=64)
    assert named.name == "rope+yarn:factor=4"
    assert named.setting == given.setting
    assert named.results == given.results
    assert ordinate.verify("alibi", properties="slopes", num_heads=4).ok
