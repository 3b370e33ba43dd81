"""Properties of codes and rotations: bounds, shifts and norms."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..encoding import PositionEncoding
from ..parts import axes_of, hooks_of
from ..setting import Setting
from .calls import ONE_ANSWER, Call
from .observe import bias_by_distance, codes, key_heads, logits, need, score_curves, turned
from .order import ROUNDING
from .report import Measurement

_FAR = 2**20
_FURTHEST_SHIFT = 1_000_003
_FURTHEST_DISTANCE = 2**17


def boundedness(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Every entry of every code lies in [-1, 1]."""
    last = setting.within(_FAR)
    near = torch.arange(min(setting.count, last))
    places = torch.cat((near, last - 1 - near, setting.octaves(last)))
    largest = float(codes(encoding, setting, places).abs().amax())
    sentence = f"the largest entry is {{}}, up to position {last - 1}"
    return Measurement(largest <= 1 + ROUNDING, largest, "absolute value", sentence)


def shift_invariance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Moving every token by the same number of positions changes no score, in any octave of shifts.

    Neighbours are moved, at some shifts also tokens far from each other, and along each axis alone. The budget
    is the rounding of float64: an angle at position p is off by up to ``p · 2^-53``.
    """
    axes, reach = axes_of(encoding), setting.within(_FURTHEST_SHIFT)
    near = torch.arange(setting.within(16))
    wide = torch.cat((near, 2 ** torch.arange(6, 18) + torch.arange(12)))
    wide = wide[wide < max(reach - len(near), 1)]
    room = reach - len(near) if setting.limit is not None else _FURTHEST_SHIFT
    shifts = sorted({*setting.octaves(room)[1:].tolist(), room}) if room > 0 else []
    holds, largest = True, 0.0
    strides = range(0, max(room, 0), 2**17)  # as long as the wide row, so that no position is skipped
    for here, moves in ((near, shifts), (wide, [*strides, *shifts[::12]])):
        x = setting.random(1, len(here), setting.d_model)
        places = here.expand(axes, 1, -1).clone() if axes > 1 else here
        plain = logits(encoding, setting, x, places, places)
        norms = x.norm(dim=-1).amax().square() / setting.head_dim**0.5
        for index, shift in enumerate(moves):
            moved = places.clone()
            # All axes together, or one alone.
            moved[index % (axes + 1) - 1 if axes > 1 and index % (axes + 1) else slice(None)] += shift
            if setting.limit is not None and int(moved.amax()) >= setting.limit:
                continue
            change = float(_change(logits(encoding, setting, x, moved, moved), plain).abs().amax())
            reached = float(shift + here[-1] + 1)
            budget = 4 * reached * torch.finfo(torch.float64).eps * (float(norms) + _largest(plain))
            largest, holds = max(largest, change), holds and change <= budget
    if "embed" not in hooks_of(encoding) and axes == 1:
        change = _change_along_a_row(encoding, setting)
        largest, holds = max(largest, change), holds and change <= ONE_ANSWER
    sentence = f"scores change by {{}}, moved by up to {shifts[-1] if shifts else 0}"
    return Measurement(holds, largest, "logits", sentence)


def _change_along_a_row(encoding: PositionEncoding, setting: Setting) -> float:
    """How much the score of a query with keys a little before it differs between any two positions.

    Each position is a row of a batch, with a query and two keys that are the same in all of them.
    """
    queries = torch.arange(min(3, setting.count - 1), setting.count)[:, None]
    keys = (queries - torch.tensor([0, 1, 3])).clamp(min=0)
    one = Call.at(
        setting,
        queries[:1],
        keys[:1],
        kv_heads=key_heads(encoding, setting),
        lengths=setting.length_for(encoding),
    )
    tokens = {name: getattr(one, name) for name in ("x", "q", "k", "v")}
    repeated = {name: token.expand(len(queries), *token.shape[1:]) for name, token in tokens.items()}
    call = replace(one, **repeated, q_positions=queries, k_positions=keys)
    answers = call.answers(encoding, setting)
    q, k = answers.get("q", call.q), answers.get("k", call.k)
    q = q.unflatten(1, (k.shape[1], -1))[:, :, :, 0]
    scores = (
        torch.einsum("bkgd,bksd->bkgs", q, k).flatten(1, 2)
        * encoding.logit_factor
        / setting.head_dim**0.5
    )
    scores = scores + answers["bias"][:, :, 0] if "bias" in answers else scores
    return float(_change(scores, scores[:1]).abs().amax())


def _change(scores: Tensor, others: Tensor) -> Tensor:
    """By how much scores differ: not at all where a window hides the key in both, and without end where one is NaN."""
    off = torch.where(scores == others, 0, scores - others)
    return off.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _largest(scores: Tensor) -> float:
    """The largest score, whatever its sign, of those that are not hidden."""
    return float(scores.nan_to_num(posinf=0, neginf=0).abs().amax())


def linear_shift_map(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """One matrix for each k turns the code of p into the code of p + k, for every p.

    The matrix is fitted by least squares on some positions and judged on others.
    """
    need("embed", encoding)
    shift, known = 17, setting.d_model + 64
    last = setting.within(max(4 * known, 1024) + shift) - shift
    if last < 4:
        shift, last = 1, setting.within(8) - 1
    order = torch.randperm(last, generator=torch.Generator().manual_seed(setting.seed))
    fitted, judged = order[: min(known, last // 2)], order[-min(64, last // 2) :]
    before, after = (codes(encoding, setting, fitted + k) for k in (0, shift))
    matrix = torch.linalg.lstsq(before, after, driver="gelsd").solution
    before, after = (codes(encoding, setting, judged + k) for k in (0, shift))
    missed = float((before @ matrix - after).norm() / after.norm())
    # Slow pairs look almost alike, so the fit loses digits in proportion; the verdict stays clear.
    return Measurement(missed <= 2.0**-26, missed, "relative", "the best matrix is off by {}")


def norm_preservation(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Turning a vector, a query or a key, leaves its length as it was."""
    need("rotate", encoding)
    last = setting.within(_FAR)
    near = torch.arange(min(256, last))
    x = setting.random(setting.num_heads, setting.head_dim)
    positions = torch.cat((near, last - 1 - near, setting.octaves(last)))
    sides = [
        turned(encoding, setting, positions, x * size, keys=keys) / size
        for keys in (False, True)
        for size in (1, 2**12)  # of which a bound on the answers would be seen
    ]
    ratios = torch.stack(sides).unflatten(-1, x.shape).norm(dim=-1) / x.norm(dim=-1)
    change = float((ratios - 1).abs().amax())
    sentence = "lengths change by {}"
    if change > ROUNDING and float(ratios.amax() - ratios.amin()) <= ROUNDING:
        sentence += f": all times {float(ratios.mean()):.4g}"
    return Measurement(change <= ROUNDING, change, "relative", sentence)


def decay_with_distance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """The further away a key, the lower its score, on every head and at every step.

    The scores are those of a token with a copy of itself, for random signs and their opposites.
    """
    count, signs = setting.count, setting.signs(setting.d_model)
    curve = score_curves(encoding, setting, torch.stack((signs, -signs)), count)
    steps = _change(curve[:, 1:], curve[:, :-1])
    noise = ROUNDING * _largest(curve)
    rises = (steps > noise).any(dim=0)
    if bool(rises.any()):
        first = int(rises.nonzero()[0]) + 1
        sentence = f"{{}} of {count - 1} steps rise, the first at distance {first}; {_left(curve)}"
        return Measurement(False, int(rises.sum()), "steps", sentence)
    sentence = f"{{}} of {count - 1} steps rise"
    if hooks_of(encoding) == {"bias"}:  # far distances of a bias alone take no time
        far = bias_by_distance(encoding, setting, setting.octaves(_FURTHEST_DISTANCE))
        if bool((_change(far[:, 1:], far[:, :-1]) > ROUNDING * _largest(far)).any()):
            return Measurement(False, 0, "steps", f"{sentence}, further out some do")
    if not bool((steps < -noise).any()):
        return Measurement(False, 0, "steps", f"{sentence}, none falls: level on average")
    level = not bool((steps < -noise).all())
    return Measurement(True, 0, "steps", sentence + (", some are level" if level else ", all fall"))


def _left(curve: Float[Tensor, "heads distances"]) -> str:
    """How much of the score at distance 0 is left further out, averaged over heads."""
    mean, last = curve.mean(dim=0), curve.shape[1] - 1
    shares = [f"{float(mean[min(at, last)] / mean[0]):.2f}" for at in (256, last)]
    return f"{shares[0]} of the score is left at {min(256, last)}, {shares[1]} at {last}"
