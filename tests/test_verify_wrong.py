"""Encodings built to be wrong where a quick look does not see it: each fails the property that is about it.

They are variations of encodings that are right, with the claims of those, so that nothing but the fault
gives them away.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import ordinate
from ordinate import (
    ALiBi,
    Combined,
    DistanceBias,
    KeyBias,
    LinearBias,
    PositionEncoding,
    RoPE,
    RowBias,
    Sinusoidal,
)
from ordinate.positions import Places, resolve
from ordinate.rotate.rotation import Rotation
from ordinate.verification.report import NOT_TRIED, Status

SIZES = {"d_model": 32, "num_heads": 4, "head_dim": 8}
ROTARY = {"uniqueness", "shift invariance", "norm preservation", "wavelengths"}


class Rotary(PositionEncoding):
    """RoPE, and what a wrong one does to the positions, the base and the result of either side."""

    claims = frozenset(ROTARY)
    length_dependent = False

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        at_q, at_k = places.queries, places.keys
        return self.turn(q, self.places(at_q, q), q), self.turn(
            k, self.key_places(at_k, k), q, keys=True
        )

    def inv_freq(self):
        return 100.0 ** (-torch.arange(4, dtype=torch.float64) / 4)

    def places(self, positions, x):
        return positions

    def key_places(self, positions, x):
        return self.places(positions, x)

    def base(self, x, keys):
        return 100.0

    def turn(self, x, positions, q, keys=False):
        inv_freq = self.base(x, keys) ** (-torch.arange(4, dtype=torch.float64) / 4)
        return Rotation(positions[..., None].double() * inv_freq, 1.0, "half", 8).apply(x)


class LongKeys(Rotary):
    def turn(self, x, positions, q, keys=False):
        return super().turn(x, positions, q) * (3 if keys else 1)


class RoundedKeys(Rotary):
    def key_places(self, positions, x):
        return positions.to(x.dtype).long()


class FirstRowOfPositions(Rotary):
    def places(self, positions, x):
        return positions[:1]


class FirstRowOfKeyPositions(Rotary):
    def key_places(self, positions, x):
        return positions[:1]


class LastRowForBatches(Rotary):
    def places(self, positions, x):
        return positions if len(x) < 3 else positions[-1:]


class AnotherBaseForLongRows(Rotary):
    def base(self, x, keys):
        return 100.0 if x.shape[2] <= 2048 else 200.0


class AnotherBaseForKeys(Rotary):
    def base(self, x, keys):
        return 90.0 if keys else 100.0


class AnotherBaseForHalfOfTheHeads(Rotary):
    def turn(self, x, positions, q, keys=False):
        turned = super().turn(x, positions, q)
        if keys and x.shape[1] == 4:
            turned[:, 2:] = x[:, 2:]
        return turned


class RememberThatARowWasLong(Rotary):
    claims = frozenset(ROTARY - {"wavelengths"})
    long = False

    def base(self, x, keys):
        self.long = self.long or x.shape[2] > 2048
        return 200.0 if self.long else 100.0


class LoneQueriesTurnBack(Rotary):
    """Right for a whole row, and for a lone query with at most 64 keys."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        at_q, at_k = places.queries, places.keys
        off = 1 if q.shape[2] == 1 and k.shape[2] > 64 else 0
        return self.turn(q, at_q - off, q), self.turn(k, at_k, q)


class WrongInRowsOf(Rotary):
    """Right but in rows whose length a test chooses."""

    def __init__(self, wrong: Callable[[int], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def places(self, positions, x):
        return positions + 1 if self.wrong(x.shape[2]) else positions

    def key_places(self, positions, x):
        return positions


class QueriesOffIn(Rotary):
    """Right but in calls whose batch and numbers of queries and keys a test chooses."""

    def __init__(self, wrong: Callable[[int, int, int], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        at_q, at_k = places.queries, places.keys
        off = int(self.wrong(len(q), q.shape[2], k.shape[2]))
        return self.turn(q, at_q + off, q), self.turn(k, at_k, q)


class FirstRowOfPositionsIn(Rotary):
    """Row 0's positions serve all rows in calls whose numbers of queries and keys a test chooses."""

    def __init__(self, wrong: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        at_q, at_k = places.queries, places.keys
        at_q = at_q[:1] if self.wrong(q.shape[2], k.shape[2]) else at_q
        return self.turn(q, at_q, q), self.turn(k, at_k, q)


class CountsWherePositionsAreLeftOut(Rotary):
    """Queries that are fewer than keys start at 0."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q_positions is None:
            q_positions, k_positions = torch.arange(q.shape[2]), torch.arange(k.shape[2])
        return super().rotate(q, k, q_positions, k_positions)


class KeysOffByOneAfterAStart(Rotary):
    def key_places(self, positions, x):
        return positions - (positions[:, :1] > 0).long()


class KeysAtThePlacesOfQueries(Rotary):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q.shape[2] == k.shape[2] and q_positions is not None:
            k_positions = q_positions
        return super().rotate(q, k, q_positions, k_positions)


class CountsFromTheFirst(Rotary):
    """Takes every row for a run: its first position, and one after the other."""

    def places(self, positions, x):
        return positions[:, :1] + torch.arange(positions.shape[1])


class MovedWhere(Rotary):
    """Right but for tokens that a test chooses, which it moves."""

    def __init__(self, wrong: Callable[[torch.Tensor], bool], moved=lambda p: p + 1) -> None:
        super().__init__()
        self.wrong, self.moved = wrong, moved

    def places(self, positions, x):
        return self.moved(positions) if self.wrong(x) else positions


class CutsWhere(Rotary):
    """The gradient of keys, where a test says so of queries and keys."""

    def __init__(self, wrong: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def turn(self, x, positions, q, keys=False):
        return super().turn(x.detach() if keys and self.wrong(q, x) else x, positions, q)


class MovedInLongTraining(Rotary):
    def places(self, positions, x):
        return positions // 2 if self.training and x.shape[2] > 16 else positions


class RowsCountOn(Rotary):
    """Where positions are left out, row 1 takes every second."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q_positions is None and q.shape[2] == k.shape[2]:
            rows = torch.arange(1, len(q) + 1)[:, None]
            q_positions = k_positions = rows * torch.arange(q.shape[2])
        return super().rotate(q, k, q_positions, k_positions)


class LeftOutIsDoubled(Rotary):
    """In bfloat16 only."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q_positions is None and q.dtype == torch.bfloat16:
            q_positions = k_positions = 2 * torch.arange(q.shape[2])
        return super().rotate(q, k, q_positions, k_positions)


class AnglesByAProduct(Rotary):
    """Of matrices, which autocast rounds."""

    def turn(self, x, positions, q, keys=False):
        wide = torch.promote_types(x.dtype, torch.float32)
        angles = positions[..., None].to(wide) @ self.inv_freq()[None].to(wide)
        return Rotation(angles.double(), 1.0, "half", 8).apply(x)


class KeepsAFactor(Rotary):
    """Made at the first call, which under inference_mode is of no use to training."""

    kept = None

    def turn(self, x, positions, q, keys=False):
        if self.kept is None:
            self.kept = torch.ones(8, dtype=torch.float64)
        return super().turn(x * self.kept.to(x.dtype), positions, q)


class KeepsItsGraph(PositionEncoding):
    """Rates of learned decay are kept as they were computed, until the parameter changes."""

    kept = None

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.rand(4))

    def __deepcopy__(self, memo):
        copied = KeepsItsGraph()
        copied.rates = nn.Parameter(self.rates.detach().clone())
        return copied.train(self.training)

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        now = (self.rates._version, self.rates.dtype, torch.is_grad_enabled())
        if self.kept is None or self.kept[0] != now:
            self.kept = now, self.rates.exp()
        places = resolve(q, k, q_positions, k_positions)
        return LinearBias(self.kept[1], places, symmetric=True)


class TakesTokensForLength(PositionEncoding):
    """Where the length is left out."""

    length_dependent = True

    def __init__(self, own: bool = True) -> None:
        super().__init__()
        self.own = own

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if lengths is None and self.own:
            lengths = k.shape[2]
        scaling = ordinate.scaling.DynamicNTK(factor=4, original_max_positions=64)
        rope = RoPE(8, base=100, scaling=scaling)
        return rope.rotate(q, k, q_positions, k_positions, lengths=lengths)


class ClampsAnswers(Rotary):
    def turn(self, x, positions, q, keys=False):
        return super().turn(x, positions, q).clamp(-30, 30)


class SetsTheProcess(Rotary):
    """To what a test says."""

    def __init__(self, changed: Callable[[], object]) -> None:
        super().__init__()
        self.changed = changed

    def places(self, positions, x):
        self.changed()
        return positions


class OnlyInDtype(Rotary):
    def __init__(self, dtype: torch.dtype, keys: bool = False) -> None:
        super().__init__()
        self.dtype, self.keys = dtype, keys

    def base(self, x, keys):
        return 150.0 if x.dtype == self.dtype and (keys or not self.keys) else 100.0


class KeepsTheFirstTable(Rotary):
    """Angles in the dtype of the first call serve all that follow."""

    table = None

    def places(self, positions, x):
        if self.table is None:
            self.table = torch.arange(2**13).to(x.dtype).double()
        return torch.where(
            positions < 2**13, self.table[positions.clamp(max=2**13 - 1)], positions.double()
        )


class KeepsAnglesOfAShape(Rotary):
    """Positions of the last call with as many tokens serve the next."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = {}

    def places(self, positions, x):
        return self.kept.setdefault(tuple(positions.shape), positions.clone())


class KeepsAnglesOfATensor(Rotary):
    """Positions in the same memory are taken to be the same, written on or not."""

    held = None

    def places(self, positions, x):
        if self.held is None or self.held[0].data_ptr() != positions.data_ptr():
            self.held = (positions, positions.clone())
        return self.held[1]


class HeadsInReverse(Rotary):
    """Key heads come back in another order where they are fewer."""

    def __init__(self, dtypes=(torch.float64, torch.float32, torch.bfloat16)) -> None:
        super().__init__()
        self.dtypes = dtypes

    def turn(self, x, positions, q, keys=False):
        turned = super().turn(x, positions, q)
        return turned.flip(1) if x.shape[1] < q.shape[1] and x.dtype in self.dtypes else turned


class RefusesOddBatches(Rotary):
    def places(self, positions, x):
        return positions.reshape(1, -1)[:, : positions.shape[1]]


class WrongWhenTraining(Rotary):
    def places(self, positions, x):
        return positions // 2 if self.training else positions


class WrongUnderGradients(Rotary):
    def places(self, positions, x):
        return positions + 1 if torch.is_grad_enabled() else positions

    def key_places(self, positions, x):
        return positions


class _NoGradient(torch.autograd.Function):
    """Twice the gradient it should have."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class DoublesTheGradientOfKeys(Rotary):
    def turn(self, x, positions, q, keys=False):
        return super().turn(_NoGradient.apply(x) if keys else x, positions, q)


class CutsTheGradientOfQueries(Rotary):
    def turn(self, x, positions, q, keys=False):
        return super().turn(x if keys else x.detach(), positions, q)


class ReturnsMemoryOfItsOwn(Rotary):
    """Queries come back in memory that the next call writes on."""

    held = None

    def turn(self, x, positions, q, keys=False):
        turned = super().turn(x, positions, q)
        if keys or torch.is_grad_enabled():
            return turned
        if self.held is None or self.held.shape != turned.shape or self.held.dtype != turned.dtype:
            self.held = torch.empty_like(turned)
        return self.held.copy_(turned)


class SetsTheSeed(Rotary):
    def places(self, positions, x):
        torch.manual_seed(0)
        return positions


class SkipsPositions(Rotary):
    """From some position on, queries and keys alike stand three further out."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start

    def places(self, positions, x):
        return torch.where(positions >= self.start, positions + 3, positions)


class OnePositionOff(Rotary):
    def places(self, positions, x):
        return torch.where(positions == 1234, 1234.25, positions.double())


class KeepsPositionsOfALength(Rotary):
    """In a table of the class, so that one instance finds what another left."""

    kept = {}  # noqa: RUF012

    def places(self, positions, x):
        run = torch.arange(positions.shape[-1])
        if not bool((positions == run).all()):
            return positions
        return self.kept.setdefault(len(run), run.to(x.dtype).double())[None].expand(positions.shape)


class NarrowPositions(Rotary):
    """Integers of 32 bits are taken for ones of 8."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q_positions is not None and q_positions.dtype == torch.int32:
            q_positions, k_positions = q_positions % 128, k_positions % 128
        return super().rotate(q, k, q_positions, k_positions)


class DependsOnLengthsInSilence(Rotary):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        self.stretch = 2 if isinstance(lengths, int) and lengths > 4096 else 1
        return super().rotate(q, k, q_positions, k_positions)

    def places(self, positions, x):
        return positions * self.stretch


class LearnsFrequencies(PositionEncoding):
    def __init__(self, used=lambda frequencies: frequencies) -> None:
        super().__init__()
        self.frequencies, self.used = nn.Parameter(torch.rand(4)), used

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        turned = []
        places = resolve(q, k, q_positions, k_positions)
        for x, at in ((q, places.queries), (k, places.keys)):
            angles = at[..., None].double() * self.used(self.frequencies).double()
            turned.append(Rotation(angles, 1.0, "half", 8).apply(x))
        return tuple(turned)


class KeysStandStill(Rotary):
    """As distances in both directions would need, but only queries turn."""

    claims = frozenset({"uniqueness", "norm preservation"})

    def key_places(self, positions, x):
        return positions * 0


class StopsFarOut(Rotary):
    claims = frozenset(ROTARY - {"shift invariance"})

    def places(self, positions, x):
        return positions.clamp(max=50_000)


class WritesOnLongQueries(Rotary):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        turned, k = super().rotate(q, k, q_positions, k_positions)
        return q.copy_(turned) if q.shape[2] > 100 else turned, k


class WritesOnKeysInBatches(Rotary):
    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        q, turned = super().rotate(q, k, q_positions, k_positions)
        return q, k.copy_(turned) if len(k) > 1 else turned


class TwoAxes(PositionEncoding):
    """Pairs 0 and 1 turn by the row of a patch, 2 and 3 by its column."""

    claims = frozenset({"uniqueness", "norm preservation"})
    axes = 2

    def __init__(self, queries=(0, 0, 1, 1), keys=(0, 0, 1, 1), *claims: str) -> None:
        super().__init__()
        self.queries, self.keys = queries, keys

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions, axes=2)
        return tuple(
            self.turn(x, at, axis)
            for x, at, axis in ((q, places.queries, self.queries), (k, places.keys, self.keys))
        )

    def turn(self, x, positions, axis):
        if positions.dim() == 2:
            positions = positions.expand(2, *positions.shape)
        at = positions[list(axis)].movedim(0, -1).double()
        return Rotation(at * 100.0 ** (-torch.arange(4) % 2 / 2), 1.0, "half", 8).apply(x)


class FirstRowOfColumns(TwoAxes):
    def turn(self, x, positions, axis):
        if positions.dim() == 3:
            positions = torch.stack((positions[0], positions[1, :1].expand_as(positions[0])))
        return super().turn(x, positions, axis)


class SumOfAxes(TwoAxes):
    """Reads both, but not which is which."""

    def turn(self, x, positions, axis):
        return super().turn(x, positions.sum(0) if positions.dim() == 3 else positions, axis)


class OneNumberIsAnotherPlace(TwoAxes):
    """Where one number stands for all coordinates, it is three times as far."""

    def turn(self, x, positions, axis):
        return super().turn(x, positions if positions.dim() == 3 else 3 * positions, axis)


class ColumnsEndAt200(TwoAxes):
    def turn(self, x, positions, axis):
        if positions.dim() == 3:
            positions = torch.stack((positions[0], positions[1].clamp(max=200)))
        return super().turn(x, positions, axis)


class Codes(PositionEncoding):
    """Sinusoidal codes at the places a test makes of the positions."""

    claims = Sinusoidal.claims

    def __init__(self, places=lambda positions, x: positions) -> None:
        super().__init__()
        self.codes, self.places = Sinusoidal(32, base=100.0), places

    def inv_freq(self):
        return self.codes.inv_freq()

    def embed(self, x, positions=None):
        if positions is None:
            positions = torch.arange(x.shape[1])
        positions = positions if positions.dim() == 2 else positions[None]
        return self.codes.embed(x, self.places(positions, x))


class CodesOfShuffledRows(Codes):
    def embed(self, x, positions=None):
        added = super().embed(x, positions) - x
        return x + added.roll(1, 0)


class RowsOfCodesCountOn(Codes):
    """Where positions are left out, row 1 begins where row 0 ends."""

    def embed(self, x, positions=None):
        if positions is None:
            positions = torch.arange(len(x) * x.shape[1]).view(len(x), -1)
        return super().embed(x, positions)


class Learned(PositionEncoding):
    """A trained table whose rows are copied at the first call."""

    copied = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5000, 32))

    def embed(self, x, positions=None):
        if positions is None:
            positions = torch.arange(x.shape[1])
        if self.copied is None:
            self.copied = self.weight.detach().clone()
        table = self.copied if not torch.is_grad_enabled() else self.weight
        return x + table[positions % 5000].to(x.dtype)


class Line(PositionEncoding):
    """ALiBi in both directions, and what a wrong one makes of it."""

    claims = frozenset({"shift invariance"})

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions)
        return self.line(q, k, places.queries, places.keys)

    def line(self, q, k, queries, keys):
        return LinearBias(self.slopes, Places.at(queries, keys), symmetric=True)


class LineByIndices(Line):
    def line(self, q, k, queries, keys):
        queries = queries[:, -1:] + torch.arange(1 - q.shape[2], 1)
        keys = keys[:, -1:] + torch.arange(1 - k.shape[2], 1)
        return LinearBias(self.slopes, Places.at(queries, keys), symmetric=True)


class LineOfTheFirstRow(Line):
    def line(self, q, k, queries, keys):
        return LinearBias(self.slopes, Places.at(queries[:1], keys[:1]), symmetric=True)


class SlopesReversedForFewerKeys(Line):
    def line(self, q, k, queries, keys):
        slopes = self.slopes if k.shape[1] == q.shape[1] else self.slopes.flip(0)
        return LinearBias(slopes, Places.at(queries, keys), symmetric=True)


class WidensKeys(Rotary):
    """As a product with a cosine in float32 does."""

    def turn(self, x, positions, q, keys=False):
        turned = super().turn(x, positions, q)
        return turned.float() if keys and x.dtype == torch.bfloat16 else turned


class SteeperInFloat32(Line):
    def line(self, q, k, queries, keys):
        return LinearBias(
            self.slopes * (1.01 if q.dtype == torch.float32 else 1),
            Places.at(queries, keys),
            symmetric=True,
        )


class MovesBetween(Line):
    def __init__(self, low: int, high: int) -> None:
        super().__init__()
        self.low, self.high = low, high

    def line(self, q, k, queries, keys):
        queries, keys = (
            torch.where((p >= self.low) & (p < self.high), 2 * p, p) for p in (queries, keys)
        )
        return LinearBias(self.slopes, Places.at(queries, keys), symmetric=True)


class CountsHeadsOfKeys(Line):
    def line(self, q, k, queries, keys):
        return LinearBias(self.slopes[: k.shape[1]], Places.at(queries, keys), symmetric=True)


class CutSlope(Line):
    def line(self, q, k, queries, keys):
        return LinearBias(self.slopes.detach(), Places.at(queries, keys), symmetric=True)


class CutSlopeWhere(Line):
    """A test says so of the queries."""

    def __init__(self, wrong: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.wrong = wrong

    def line(self, q, k, queries, keys):
        slopes = self.slopes.detach() if self.wrong(q) else self.slopes
        return LinearBias(slopes, Places.at(queries, keys), symmetric=True)


class SteeperWhereLeftOut(Line):
    """In batches."""

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        steeper = 2 if q_positions is None and len(q) > 1 else 1
        places = resolve(q, k, q_positions, k_positions)
        return LinearBias(steeper * self.slopes, places, symmetric=True)


class CutSlopeOfTheLastHead(Line):
    def line(self, q, k, queries, keys):
        slopes = torch.cat((self.slopes[:3], self.slopes[3:].detach()))
        return LinearBias(slopes, Places.at(queries, keys), symmetric=True)


class FlattensOnGaps(Line):
    """Looks up a table by diagonals, where there are none too, on its last head only."""

    def line(self, q, k, queries, keys):
        slopes = self.slopes
        if not bool((keys.diff(dim=-1) == 1).all()):
            slopes = slopes * torch.tensor([1.0, 1.0, 1.0, 0.5])
        return LinearBias(slopes, Places.at(queries, keys), symmetric=True)


class LoneQueriesSeeNothing(Line):
    def line(self, q, k, queries, keys):
        lone = q.shape[2] == 1 and k.shape[2] > 64
        return LinearBias(self.slopes * (0.5 if lone else 1), Places.at(queries, keys), symmetric=True)


class BendsFarOut(Line):
    claims = frozenset({"slopes", "shift invariance"})

    def line(self, q, k, queries, keys):
        return DistanceBias(-self.slopes[:, None] * torch.arange(10_000), Places.at(queries, keys), lo=0)


class RisesFarOut(Line):
    claims = frozenset({"shift invariance", "decay with distance"})

    def line(self, q, k, queries, keys):
        distances = torch.arange(9000)
        table = -self.slopes[:, None] * torch.where(distances < 6000, distances, 12_000 - distances)
        return DistanceBias(table, Places.at(queries, keys), lo=0)


class LearnsNearRowsOnly(PositionEncoding):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2001))

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        near, far = self.weight[:, 500:1501], self.weight.detach()
        table = torch.cat((far[:, :500], near, far[:, 1501:]), dim=1)
        return DistanceBias(table, resolve(q, k, q_positions, k_positions), lo=-1000)


class WrongBlocks(DistanceBias):
    """A user's bias type whose parts are not parts of the whole."""

    def block(self, q, k):
        return super().block(slice(0, q.stop - q.start), k)


class BlocksOfAnotherPlace(PositionEncoding):
    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions)
        table = -torch.arange(6001).log1p().to(torch.float64).expand(4, -1)
        return WrongBlocks(table, places, lo=-3000)


class NoScoreMod(LinearBias):
    """To FlexAttention it adds nothing."""

    def _lookup(self):
        return lambda b, h, q, k: 0 * q


class NothingForFlexAttention(Line):
    def line(self, q, k, queries, keys):
        return NoScoreMod(self.slopes, Places.at(queries, keys), symmetric=True)


class WrongPullback(LinearBias):
    def pullback(self, grad):
        return tuple(None if part is None else part / 2 for part in super().pullback(grad))


class HalvesItsGradient(Line):
    def line(self, q, k, queries, keys):
        return WrongPullback(self.slopes, Places.at(queries, keys), symmetric=True)


class KeyFeatures(PositionEncoding):
    """A term of the keys' content, with grouped queries in an order a test chooses."""

    def __init__(self, shared, reads_keys: bool = True) -> None:
        super().__init__()
        self.reads_keys = reads_keys
        self.table, self.shared = nn.Parameter(torch.randn(1, 33, 8)), shared

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        places = resolve(q, k, q_positions, k_positions)
        features = self.shared(k, q.shape[1] // k.shape[1])
        return RowBias(features, self.table, places, lo=-16, side="key")


class Gate(PositionEncoding):
    """A forget gate: what lies between a key and the query, as the input says (FoX)."""

    reads_input = True

    def __init__(self, summed=lambda gates: gates.cumsum(1)) -> None:
        super().__init__()
        self.weight, self.summed = nn.Parameter(0.1 * torch.randn(32, 4)), summed

    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        wide = torch.promote_types(x.dtype, torch.float32)
        gates = nn.functional.logsigmoid(x.to(wide) @ self.weight.to(wide))
        return KeyBias(-self.summed(gates).transpose(1, 2))


def _repeat_interleave(k, times):
    return k.repeat_interleave(times, dim=1)


def _claiming(claim, encoding):
    encoding.claims = encoding.claims | {claim}
    return encoding


#: What is wrong, the property that must fail, and the encoding. The first version of `verify` passed all of these.
FOUND = [
    ("keys come back three times as long", "norm preservation", LongKeys),
    ("keys' positions in their dtype", "dtype collisions", RoundedKeys),
    ("row 0's positions for all rows, rotating", "rows apart", FirstRowOfPositions),
    ("row 0's positions for all rows, embedding", "rows apart", lambda: Codes(lambda p, x: p[:1])),
    ("a table in the dtype of the first call", "determinism", KeepsTheFirstTable),
    ("another base beyond 2,048 tokens", "every length", AnotherBaseForLongRows),
    ("a row beyond 2,048 tokens changes all that follow", "determinism", RememberThatARowWasLong),
    ("a lone query is off beyond 64 keys", "every length", LoneQueriesTurnBack),
    ("distances from indices", "gaps", LineByIndices),
    ("a bias moves between 1,000 and 900,000", "shift invariance", lambda: MovesBetween(1000, 900_000)),
    ("heads counted from the keys", "grouped queries", CountsHeadsOfKeys),
    ("a slope cut from its gradient", "gradients", CutSlope),
    ("two axes, columns are not read", "uniqueness", lambda: TwoAxes((0, 0, 0, 0), (0, 0, 0, 0))),
]  # fmt: skip

#: Others of their kinds.
OTHERS = [
    ("two axes, columns are not read in keys", "uniqueness", lambda: TwoAxes(keys=(0, 0, 0, 0))),
    ("two axes, rows are not read in queries", "uniqueness", lambda: TwoAxes((1, 1, 1, 1))),
    ("two axes, row 0's columns for all rows", "rows apart", FirstRowOfColumns),
    ("row 0's positions for all rows of keys", "rows apart", FirstRowOfKeyPositions),
    ("row 0's positions for all rows of a bias", "rows apart", LineOfTheFirstRow),
    ("the last row's positions in batches of three", "rows apart", LastRowForBatches),
    ("codes of the row before", "rows apart", CodesOfShuffledRows),
    ("all rows laid out as one", "rows apart", RefusesOddBatches),
    ("keys at the queries' positions", "gaps", KeysAtThePlacesOfQueries),
    ("keys turn with another base", "wavelengths", AnotherBaseForKeys),
    ("keys turn with another base", "shift invariance", AnotherBaseForKeys),
    ("keys of two heads stand still", "wavelengths", AnotherBaseForHalfOfTheHeads),
    ("keys stand still", "uniqueness", KeysStandStill),
    ("counts from the first position", "gaps", CountsFromTheFirst),
    ("codes count from the first position", "gaps",
     lambda: Codes(lambda p, x: p[:, :1] + torch.arange(p.shape[1]))),
    ("a bias is flatter among gaps, on one head", "gaps", FlattensOnGaps),
    ("left-out positions start at 0", "every length", CountsWherePositionsAreLeftOut),
    ("keys are off by one after a start", "gaps", KeysOffByOneAfterAStart),
    ("queries off in rows that are no power of two", "every length",
     lambda: WrongInRowsOf(lambda n: n > 4 and n & (n - 1) != 0)),
    ("queries off in rows of 700 to 1,000", "every length", lambda: WrongInRowsOf(lambda n: 700 < n < 1000)),
    ("a lone query's bias is halved beyond 64 keys", "every length", LoneQueriesSeeNothing),
    ("another base in float32", "low precision", lambda: OnlyInDtype(torch.float32)),
    ("another base in bfloat16 for keys", "low precision", lambda: OnlyInDtype(torch.bfloat16, keys=True)),
    ("positions of the last call of a shape", "determinism", KeepsAnglesOfAShape),
    ("positions of a tensor since written on", "determinism", KeepsAnglesOfATensor),
    ("parameters of the first call", "determinism", Learned),
    ("key heads reversed where they are fewer", "grouped queries", HeadsInReverse),
    ("grouped queries in the wrong order", "grouped queries",
     lambda: KeyFeatures(lambda k, times: k.repeat(1, times, 1, 1))),
    ("other positions in training", "gradients", WrongWhenTraining),
    ("other positions under gradients", "gradients", WrongUnderGradients),
    ("twice the gradient of keys", "gradients", DoublesTheGradientOfKeys),
    ("no gradient of queries", "gradients", CutsTheGradientOfQueries),
    ("one head's slope cut from its gradient", "gradients", CutSlopeOfTheLastHead),
    ("half the gradient of a bias of one's own", "gradients", HalvesItsGradient),
    ("blocks of a bias of one's own are of another place", "every length", BlocksOfAnotherPlace),
    ("a bias moves between 40 and 60", "shift invariance", lambda: MovesBetween(40, 60)),
    ("a bias moves from 600,000 on", "shift invariance", lambda: MovesBetween(600_000, 10**9)),
    ("a line bends at 10,000", "slopes", BendsFarOut),
    ("positions stop at 50,000", "past training length", StopsFarOut),
    ("keys written on in batches", "inputs untouched", WritesOnKeysInBatches),
    ("a gate that adds up all rows", "rows apart", lambda: Gate(lambda gates: gates.cumsum(0).cumsum(1))),
    ("a gate that adds up from the end", "every length", lambda: Gate(lambda gates: gates * gates.shape[1])),
    ("two axes, exchanged in keys", "shift invariance",
     lambda: _claiming("shift invariance", TwoAxes(keys=(1, 1, 0, 0)))),
    ("a skip at 700 of queries and keys alike", "shift invariance", lambda: SkipsPositions(700)),
    ("a skip at 777,777", "shift invariance", lambda: SkipsPositions(777_777)),
    ("position 1,234 is off", "shift invariance", OnePositionOff),
    ("row 0's positions in batches of eight and more", "rows apart",
     lambda: Codes(lambda p, x: p[:1] if len(x) >= 8 else p)),
    ("positions of 32 bits", "rows apart", NarrowPositions),
    ("a class keeps positions of a length in their first dtype", "every length", KeepsPositionsOfALength),
    ("queries off in prefills of 1,000 to 2,000", "every length",
     lambda: WrongInRowsOf(lambda n: 1000 < n < 2000)),
    ("slopes in reverse where key heads are fewer", "grouped queries", SlopesReversedForFewerKeys),
    ("steeper in float32", "low precision", SteeperInFloat32),
    ("frequencies cut from their gradient", "gradients", lambda: LearnsFrequencies(torch.Tensor.detach)),
    ("far rows of a table cut from their gradient", "gradients", LearnsNearRowsOnly),
    ("results in memory of its own", "determinism", ReturnsMemoryOfItsOwn),
    ("sets the seed", "inputs untouched", SetsTheSeed),
    ("rises again at 6,000", "decay with distance", RisesFarOut),
    ("codes start over at 5,000", "uniqueness", lambda: Codes(lambda p, x: p % 5000)),
    ("reads keys in silence", "decode equals prefill", lambda: KeyFeatures(_repeat_interleave, False)),
    ("reads lengths in silence", "decode equals prefill", DependsOnLengthsInSilence),
    ("keys come back in float32", "low precision", WidensKeys),
    ("a few queries are off beyond 1,000 keys", "every length",
     lambda: QueriesOffIn(lambda rows, q, k: 2 <= q <= 8 and k > 1000)),
    ("more queries than keys are off", "gaps", lambda: QueriesOffIn(lambda rows, q, k: q > k)),
    ("row 0's position for all lone queries beyond 1,000 keys", "rows apart",
     lambda: FirstRowOfPositionsIn(lambda q, k: q == 1 and k > 1000)),
    ("row 0's positions for all rows beyond 64 tokens", "rows apart",
     lambda: FirstRowOfPositionsIn(lambda q, k: q > 64)),
    ("counts from the first position beyond 1,000 tokens", "gaps",
     lambda: Codes(lambda p, x: p[:, :1] + torch.arange(len(p[0])) if len(p[0]) > 1000 else p)),
    ("two axes, their sum is read", "uniqueness", SumOfAxes),
    ("two axes, columns end at 200", "uniqueness", ColumnsEndAt200),
    ("long rows of queries written on", "inputs untouched", WritesOnLongQueries),
    ("row 0's positions for all rows, in float32", "low precision",
     lambda: MovedWhere(lambda x: x.dtype == torch.float32, lambda p: p[:1])),
    ("row 0's positions for all rows, in bfloat16", "low precision",
     lambda: MovedWhere(lambda x: x.dtype == torch.bfloat16, lambda p: p[:1])),
    ("key heads reversed where they are fewer, in bfloat16", "low precision",
     lambda: HeadsInReverse([torch.bfloat16])),
    ("rows beyond 1,000 off in bfloat16", "low precision",
     lambda: MovedWhere(lambda x: x.dtype == torch.bfloat16 and x.shape[2] > 1000)),
    ("tokens as projections leave them off in float32", "low precision",
     lambda: MovedWhere(lambda x: x.dtype == torch.float32 and not x.is_contiguous())),
    ("positions left out are doubled in bfloat16", "low precision", LeftOutIsDoubled),
    ("angles that autocast rounds", "low precision", AnglesByAProduct),
    ("positions left out, row 1 takes every second", "rows apart", RowsCountOn),
    ("positions left out, codes of row 1 go on", "rows apart", RowsOfCodesCountOn),
    ("positions left out, a bias is doubled in batches", "rows apart", SteeperWhereLeftOut),
    ("length left out is the number of tokens", "rows apart", TakesTokensForLength),
    ("two axes, one number is another place", "rows apart", OneNumberIsAnotherPlace),
    ("nothing for FlexAttention", "rows apart", NothingForFlexAttention),
    ("gradient of keys cut beyond 16 tokens", "gradients", lambda: CutsWhere(lambda q, k: k.shape[2] > 16)),
    ("gradient of keys cut in float32", "gradients",
     lambda: CutsWhere(lambda q, k: k.dtype == torch.float32)),
    ("gradient of keys cut where heads are fewer", "gradients",
     lambda: CutsWhere(lambda q, k: k.shape[1] < q.shape[1])),
    ("slopes cut from their gradient beyond 16 tokens", "gradients",
     lambda: CutSlopeWhere(lambda q: q.shape[2] > 16)),
    ("slopes cut from their gradient in float32", "gradients",
     lambda: CutSlopeWhere(lambda q: q.dtype == torch.float32)),
    ("other positions in training beyond 16 tokens", "gradients", MovedInLongTraining),
    ("other positions under inference_mode", "gradients",
     lambda: MovedWhere(lambda x: torch.is_inference_mode_enabled())),
    ("a factor made under inference_mode", "gradients", KeepsAFactor),
    ("rates kept with their graph", "gradients", KeepsItsGraph),
    ("large answers are clamped", "norm preservation", ClampsAnswers),
    ("leaves gradients on", "inputs untouched", lambda: SetsTheProcess(lambda: torch.set_grad_enabled(True))),
    ("leaves gradients off", "inputs untouched",
     lambda: SetsTheProcess(lambda: torch.set_grad_enabled(False))),
    ("sets the default dtype", "inputs untouched",
     lambda: SetsTheProcess(lambda: torch.set_default_dtype(torch.float64))),
    ("asks for deterministic algorithms", "inputs untouched",
     lambda: SetsTheProcess(lambda: torch.use_deterministic_algorithms(True))),
    ("one of two in a combination", "rows apart", lambda: Combined(RoPE(8), LineOfTheFirstRow())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "make"),
    [(n, m) for _, n, m in FOUND + OTHERS],
    ids=[f"{n}: {why}" for why, n, _ in FOUND + OTHERS],
)
def test_a_wrong_encoding_fails_the_property_about_it(name, make):
    report = ordinate.verify(make(), properties=name, **SIZES)
    assert report[name].status is Status.FAILS, str(report)


def _rate(heads: int) -> PositionEncoding:
    """README's own encoding, which says nothing of its sizes."""

    class LogBias(PositionEncoding):
        def __init__(self) -> None:
            super().__init__()
            self.rate = nn.Parameter(torch.ones(heads))

        def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
            table = -self.rate[:, None] * torch.log1p(torch.arange(4097, device=q.device))
            return DistanceBias(table, resolve(q, k, q_positions, k_positions), lo=0)

    return LogBias()


class Ungrouped(LearnsFrequencies):
    """Refuses grouped queries in words."""

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        if q.shape[1] != k.shape[1]:
            raise ValueError(f"k must have the {q.shape[1]} heads of q, got {k.shape[1]}")
        return super().rotate(q, k, q_positions, k_positions)


class UngroupedBias(Line):
    def line(self, q, k, queries, keys):
        if q.shape[1] != k.shape[1]:
            raise ValueError(f"k must have the {q.shape[1]} heads of q, got {k.shape[1]}")
        return super().line(q, k, queries, keys)


class DrawsInTraining(Line):
    def line(self, q, k, queries, keys):
        scale = torch.rand(()) if self.training else 1.0
        return LinearBias(self.slopes * scale, Places.at(queries, keys), symmetric=True)


class GroupsOfFour(Rotary):
    """SelfExtend: neighbours are alike on purpose."""

    claims = frozenset()

    def places(self, positions, x):
        return positions // 4


class ScaledQueries(PositionEncoding):
    """By the logarithm of their position; keys are left alone, or the other way round."""

    def __init__(self, keys: bool = False) -> None:
        super().__init__()
        self.keys = keys

    def rotate(self, q, k, q_positions=None, k_positions=None, *, lengths=None):
        places = resolve(q, k, q_positions, k_positions)
        if self.keys:
            return q, self.scaled(k, places.keys)
        return self.scaled(q, places.queries), k

    def scaled(self, x, at):
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) * (at.to(wide) + 2).log()[:, None, :, None]).to(x.dtype)


class Window(Line):
    """Keys further away than 100 are hidden, by a bias of minus infinity."""

    claims = frozenset({"shift invariance", "decay with distance"})

    def line(self, q, k, queries, keys):
        distances = torch.arange(102)
        table = torch.where(distances > 100, -torch.inf, -self.slopes[:, None] * distances)
        return DistanceBias(table, Places.at(queries, keys), lo=0)


class ComplexTable(Rotary):
    """Meta's freqs_cis: turns as complex numbers, in a buffer."""

    max_positions = 4096

    def __init__(self, dtype: torch.dtype = torch.complex64, learned: bool = False) -> None:
        super().__init__()
        self.claims = (
            frozenset() if dtype == torch.complex64 or learned else frozenset(ROTARY - {"wavelengths"})
        )
        angles = torch.arange(4096)[:, None] * self.inv_freq()
        turns = torch.polar(torch.ones_like(angles), angles).to(dtype)
        if learned:
            self.turns = nn.Parameter(turns)
        else:
            self.register_buffer("turns", turns, persistent=False)

    def turn(self, x, positions, q, keys=False):
        if int(positions.max()) >= 4096:
            raise ValueError(f"positions must be below 4096, got {int(positions.max())}")
        wide = torch.float64 if self.turns.dtype == torch.complex128 else torch.float32
        pairs = torch.view_as_complex(x.to(wide).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[positions][:, None]).flatten(-2).to(x.dtype)


RIGHT = {
    "rotary": Rotary, "codes": Codes, "line": Line, "two axes": TwoAxes, "gate": Gate,
    "frequencies that learn": LearnsFrequencies, "no grouped queries": Ungrouped,
    "draws in training": DrawsInTraining, "keys' content": lambda: KeyFeatures(_repeat_interleave),
    "ALiBi with slopes that learn": lambda: ALiBi(4, trainable=True),
    "rotations of two axes": lambda: RoPE(8, sections=(2, 2)),
    "axes beside none": lambda: Combined(RoPE(8, sections=(2, 2)), ALiBi(4)),
    "no attribute and four heads": lambda: _rate(4), "no attribute and three heads": lambda: _rate(3),
    "no attribute and eight heads": lambda: _rate(8),
    "turns in complex64": ComplexTable, "turns in complex128": lambda: ComplexTable(torch.complex128),
    "complex numbers that learn": lambda: ComplexTable(learned=True),
    "lengths left out": lambda: TakesTokensForLength(own=False), "no grouped queries of a bias": UngroupedBias,
    "groups of four": GroupsOfFour, "queries by log n": ScaledQueries,
    "keys by log n": lambda: ScaledQueries(keys=True), "a window": Window,
    "one position": lambda: ordinate.Learned(1, 32),
    "parts that say nothing": lambda: Combined(_rate(4), LearnsFrequencies()),
}  # fmt: skip


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_right_encodings_pass_at_the_sizes_they_have(make):
    torch.manual_seed(0)
    report = ordinate.verify(make())
    assert report.ok, str(report)
    assert report.answers


def test_complex_numbers_are_measured_whole_and_a_cast_that_would_halve_them_is_named():
    report = ordinate.verify(ComplexTable(), properties=["norm", "low"], **SIZES)
    assert report["norm preservation"].value < 1e-6
    assert "; .to(dtype) would drop imaginary parts" in report["low precision"].figure


def test_what_an_encoding_does_to_the_process_is_undone():
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    report = ordinate.verify(SetsTheProcess(lambda: torch.set_default_dtype(torch.float64)), **SIZES)
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()) == before
    assert [result.name for result in report.failures] == ["inputs untouched"]
    assert "the process's default dtype" in report["inputs untouched"].figure


class ReturnsAMatrix(PositionEncoding):
    def bias(self, q, k, q_positions=None, k_positions=None, *, x=None):
        return torch.zeros(1, 4, q.shape[2], k.shape[2])


@pytest.mark.plain
def test_a_bias_that_is_a_matrix_is_refused_in_words_by_every_property():
    figures = {result.figure for result in ordinate.verify(ReturnsAMatrix(), **SIZES).failures}
    refused = "bias must be one of ordinate's bias types (a dense matrix is not), got Tensor"
    assert {figure.split(": ", 1)[1] for figure in figures} == {refused}


def test_sizes_are_found_where_an_encoding_does_not_tell_them():
    assert ordinate.verify(_rate(4), properties="gaps").setting.num_heads == 4
    assert ordinate.verify(LearnsFrequencies(), properties="gaps").setting.head_dim == 8
    codes = ordinate.verify(Learned(), properties="rows")
    assert codes.setting.d_model == 32
    both = ordinate.verify(Combined(_rate(6), LearnsFrequencies()), properties="gaps").setting
    assert (both.num_heads, both.head_dim, both.d_model) == (6, 8, 48)


def test_sizes_that_were_given_are_kept_and_what_answers_at_none_says_so():
    report = ordinate.verify(_rate(4), properties="gaps", num_heads=8)
    assert report.setting.num_heads == 8
    assert report["gaps"].figure == "BrokenAnswer: bias must have the 8 heads of q, got 4"
    assert not report.answers
    assert "It answers at no sizes that were tried" in str(report)


def test_an_axis_that_changes_nothing_is_named_and_fails_who_claims_to_tell_all_positions():
    part = TwoAxes((0, 0, 0, 0), (0, 0, 0, 0))
    result = ordinate.verify(part, properties="uniqueness", **SIZES)["uniqueness"]
    assert result.status is Status.FAILS
    assert "axis 1 changes nothing for queries; axis 1 changes nothing for keys" in result.figure
    part.claims = frozenset()  # meant to read one axis
    result = ordinate.verify(part, properties="uniqueness", **SIZES)["uniqueness"]
    assert result.status is Status.NOT_CLAIMED
    assert "axis 1 changes nothing for keys" in result.figure
    other = TwoAxes((1, 1, 1, 1), (1, 1, 1, 1))
    both = ordinate.verify(Combined(part, other), properties="uniqueness", **SIZES)["uniqueness"]
    assert "axis" not in both.figure


def test_a_report_says_what_was_not_tried():
    report = ordinate.verify(Line(), properties="shift")
    assert "a change at the hundredth call or later" in report.not_tried == NOT_TRIED
    assert "Measured on samples. Not tried: rows of more than 4,096 tokens" in str(report)
    assert "most positions and distances beyond 4,096" in report.not_tried
    assert "queries and keys of two dtypes" in report.not_tried
    assert report.to_dict()["not_tried"] == list(NOT_TRIED)
