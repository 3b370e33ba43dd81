"""The algebra of codes and rotations: bounds, shifts and lengths."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..encoding import PositionEncoding
from .observe import codes, hooks_of, logits, need, turned
from .order import ROUNDING
from .report import Measurement
from .setting import Setting

_FAR = 2**20
_SHIFTS = (1, 95, 1_000_003)  # 95 takes the pair (5, 8) to (100, 103)


def boundedness(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Every entry of every code lies in [-1, 1]."""
    last = setting.within(_FAR)
    near = torch.arange(min(setting.count, last))
    largest = float(codes(encoding, setting, torch.cat((near, last - 1 - near))).abs().amax())
    sentence = f"the largest entry is {{}}, up to position {last - 1}"
    return Measurement(largest <= 1 + ROUNDING, largest, "absolute value", sentence)


def shift_invariance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Moving every token by the same number of positions changes no score.

    The budget is what float64 can hold: an angle at position p is off by up to ``p · 2^-53``.
    """
    length = setting.within(16)
    here = torch.arange(length)
    x = setting.random(1, length, setting.d_model)
    plain = logits(encoding, setting, x, here, here)
    room = _FAR if setting.limit is None else setting.limit - length
    shifts = sorted({min(shift, room) for shift in _SHIFTS if room > 0})
    changes = [
        float((logits(encoding, setting, x, here + shift, here + shift) - plain).abs().amax())
        for shift in shifts
    ]
    largest = max(changes, default=0.0)
    reach = shifts[-1] + length if shifts else length
    norms = x.norm(dim=-1).amax().square() / setting.head_dim**0.5
    budget = 4 * reach * torch.finfo(torch.float64).eps * float(norms + plain.abs().amax())
    sentence = f"scores change by {{}}, moved by up to {shifts[-1] if shifts else 0}"
    return Measurement(largest <= budget, largest, "logits", sentence)


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
    before = {"fitted": codes(encoding, setting, fitted), "judged": codes(encoding, setting, judged)}
    after = {
        "fitted": codes(encoding, setting, fitted + shift),
        "judged": codes(encoding, setting, judged + shift),
    }
    matrix = torch.linalg.lstsq(before["fitted"], after["fitted"], driver="gelsd").solution
    missed = float((before["judged"] @ matrix - after["judged"]).norm() / after["judged"].norm())
    # Slow pairs look almost alike, so the fit loses digits in proportion; what it says stays plain.
    return Measurement(missed <= 2.0**-26, missed, "relative", "the best matrix is off by {}")


def norm_preservation(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """Turning a vector leaves its length as it was."""
    need("rotate", encoding)
    last = setting.within(_FAR)
    near = torch.arange(min(256, last))
    x = setting.random(setting.num_heads, setting.head_dim)
    positions = torch.cat((near, last - 1 - near))
    after = turned(encoding, setting, positions, x).unflatten(-1, x.shape).norm(dim=-1)
    ratios = after / x.norm(dim=-1)
    change = float((ratios - 1).abs().amax())
    sentence = "lengths change by {}"
    if change > ROUNDING and float(ratios.amax() - ratios.amin()) <= ROUNDING:
        sentence += f": all times {float(ratios.mean()):.4g}"
    return Measurement(change <= ROUNDING, change, "relative", sentence)


def decay_with_distance(encoding: PositionEncoding, setting: Setting) -> Measurement:
    """The further away a key, the lower its score, on every head and at every step.

    What is followed is the score of a token with its like: random signs and their opposites, whose
    mean is the score of random vectors with themselves, without sampling noise.
    """
    count = setting.count
    signs = setting.signs(setting.d_model)
    x = torch.stack((signs, -signs))[:, None].repeat(1, count, 1)
    scores = logits(encoding, setting, x, torch.tensor([count - 1]), torch.arange(count))
    curve = scores.mean(dim=0)[:, 0].flip(-1)  # [heads, distance]
    if "bias" not in hooks_of(encoding):  # heads differ by a bias alone; of channels the mean counts
        curve = curve.mean(dim=0, keepdim=True)
    steps = curve.diff(dim=-1)
    noise = ROUNDING * float(curve.abs().amax())
    rises = (steps > noise).any(dim=0)
    if bool(rises.any()):
        first = int(rises.nonzero()[0]) + 1
        return Measurement(
            False,
            int(rises.sum()),
            "steps",
            f"{{}} of {count - 1} steps rise, the first at distance {first}; {_left(curve)}",
        )
    sentence = f"{{}} of {count - 1} steps rise"
    if not bool((steps < -noise).any()):
        return Measurement(False, 0, "steps", f"{sentence}, none falls: level on average")
    level = not bool((steps < -noise).all())
    return Measurement(True, 0, "steps", sentence + (", some are level" if level else ", all fall"))


def _left(curve: Float[Tensor, "heads distances"]) -> str:
    """How much of the score at distance 0 is left further out, averaged over heads."""
    mean, last = curve.mean(dim=0), curve.shape[1] - 1
    shares = [f"{float(mean[min(at, last)] / mean[0]):.2f}" for at in (256, last)]
    return f"{shares[0]} of the score is left at {min(256, last)}, {shares[1]} at {last}"
