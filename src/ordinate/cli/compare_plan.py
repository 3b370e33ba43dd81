"""The comparison that ``ordinate compare`` is asked for: a new one, or one on disk with more added to it."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import check_positive_int, refused
from .errors import errors_as_misuse, hint_of_spec, misuse

if TYPE_CHECKING:
    from ..lab.config import RunConfig
    from ..lab.records import Sweep

HELP = "ordinate compare --help"

_SETTINGS = (
    "train_length", "lengths", "steps", "seeds", "task", "text", "device", "batch", "out", "cluster", "d_model",
    "learning_rate", "workers", "threads",
)  # fmt: skip
#: Setting of a comparison → option of the command.
OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SETTINGS},
    "num_layers": "--layers",
    "num_heads": "--heads",
    "extensions": "--extend",
    "head_dim": "head_dim (--d-model / --heads)",
    "lengths times extensions": "--lengths times --extend",
    "batch times train_length, d_model and num_layers": "--batch times --train-length, --d-model and --layers",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What the options of the command ask for.

    Attributes:
        settings: The settings that were given, by the names of `RunConfig`; ``lengths`` as text.
    """

    specs: list[str]
    preset: str | None
    seeds: int | None
    settings: Mapping[str, Any]
    out: Path | None
    cluster: str | None


def new_comparison(request: Request) -> Sweep:
    """A new comparison, every part of it checked before anything is written."""
    from ..lab.run.sweep import plan

    out, preset = request.out, request.preset or "quick"
    if out is not None and (out / "sweep.json").exists():
        hint = f"ordinate compare --resume --out {shlex.quote(str(out))}"
        value = f"{out}, which holds a comparison"
        raise misuse("--out", "must be a new folder", value, hint=hint)
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise misuse("--out", "must be a new or empty folder", out, hint=HELP)
    with _refusals():
        settings = dict(request.settings)
        if "lengths" in settings:
            settings["lengths"] = _lengths(settings["lengths"], settings.get("train_length"), preset)
        return plan(
            preset, request.specs, seeds=request.seeds, command=_command_line(request),
            elsewhere=request.cluster is not None, **settings,
        )  # fmt: skip


def resumed_comparison(request: Request) -> Sweep:
    """A comparison on disk, with encodings or seeds added to it if asked."""
    from ..lab.config import RunConfig, distinct_specs
    from ..lab.records import Sweep
    from ..lab.run.build import make_task
    from ..lab.run.sweep import check_arms, check_config

    out, seeds = request.out, request.seeds
    if out is None:
        raise misuse("--resume", "needs --out, the folder of the comparison to go on with", hint=HELP)
    if request.preset is not None:
        rule = "must be left out with --resume, whose settings are on disk"
        raise misuse("--preset", rule, hint=HELP)
    with _refusals():
        sweep = Sweep.load(out)
        config = RunConfig.from_dict({"spec": "none", "seed": 0, **sweep.settings})
        check_config(config, elsewhere=request.cluster is not None)
        make_task(config)
        arms = distinct_specs((*sweep.arms, *request.specs))
        check_arms(arms, config)
        count = len(sweep.seeds) if seeds is None else check_positive_int("seeds", seeds)
        for name, value in request.settings.items():
            _check_unchanged(name, value, config, out)
        if count < len(sweep.seeds):
            raise _differs("--seeds", f"at least {len(sweep.seeds)}", out, count)
        unused = (seed for seed in itertools.count() if seed not in sweep.seeds)
        more = tuple(itertools.islice(unused, count - len(sweep.seeds)))
        # The recorded command must still do all of it again.
        words = [*shlex.split(sweep.command), *arms[len(sweep.arms) :]]
        command = shlex.join([*words, "--seeds", str(count)] if more else words)
        return dataclasses.replace(sweep, arms=arms, seeds=(*sweep.seeds, *more), command=command)


def _refusals() -> AbstractContextManager[None]:
    return errors_as_misuse(hint_of_spec(HELP), OPTIONS, errors=(ValueError, TypeError, OSError))


def _check_unchanged(name: str, value: Any, config: RunConfig, out: Path) -> None:
    """A setting that is given again must be the one on disk."""
    from ..lab.corpus import absolute_paths

    recorded = getattr(config, name)
    if name == "lengths":
        value = tuple(sorted({config.train_length, *_lengths(value, config.train_length, "quick")}))
    elif name == "text":
        value = absolute_paths(value)
    if value != recorded:
        raise _differs(_option(name), recorded, out, value)


def _differs(option: str, recorded: object, out: Path, value: object) -> Exception:
    rule, hint = (
        "must be {recorded} as the comparison in {out} has it",
        "another --out for another comparison",
    )
    return misuse(option, rule, value, hint=hint, recorded=recorded, out=out)


def _lengths(text: str, train_length: int | None, preset: str) -> tuple[int, ...]:
    """``"128,256"`` and ``"1x,2x"``, or both."""
    from ..lab.run.presets import PRESETS

    if preset not in PRESETS:
        return ()  # `plan` refuses the preset
    unit = train_length or PRESETS[preset].config().train_length
    found = []
    for part in text.replace(" ", "").split(","):
        try:
            found.append(int(float(part[:-1]) * unit) if part.endswith("x") else int(part))
        except (ValueError, OverflowError):
            rule = "must be numbers such as 128,256 or 1x,2x"
            raise refused("lengths", rule, repr(part)) from None
    return tuple(found)


def _option(name: str) -> str:
    return OPTIONS.get(name, f"--{name.replace('_', '-')}")


def _command_line(request: Request) -> str:
    """The command that does this again, without the folder of its records."""
    words = ["ordinate", "compare", *request.specs]
    for name, value in {"preset": request.preset, **request.settings, "seeds": request.seeds}.items():
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{name}")
        elif value is not None:
            several = value if isinstance(value, tuple) else (value,)
            words += [word for one in several or ("none",) for word in (_option(name), str(one))]
    return shlex.join(words)
