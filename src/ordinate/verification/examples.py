"""One example of every catalog entry: what `ordinate verify` measures when it is given no names."""

from __future__ import annotations

from ..entries import catalog

# Settings of well-known models, where a scaling has no sensible default of its own.
_SCALINGS = {
    "linear": "factor=4",
    "ntk": "factor=4",
    "dynamic": "factor=4",
    "yarn": "factor=4",
    "llama3": "factor=8,low_freq_factor=1,high_freq_factor=4",
    "proportional": "fraction=0.25",
}


def example_specs(head_dim: int = 64) -> dict[str, str]:
    """Name → spec for `ordinate.create`; a scaling is shown on rope.

    Example:
        >>> example_specs()["rope+yarn"]
        'rope+yarn:factor=4'
    """
    specs = {}
    for name, entry in catalog.items():
        if not entry.is_scaling:
            specs[name] = name
        elif name == "longrope":
            specs["rope+longrope"] = f"rope+longrope:{_longrope_options(head_dim // 2)}"
        else:
            options = _SCALINGS.get(name)
            if name == "proportional" and head_dim < 8:
                options = "fraction=1.0"  # a quarter of so few pairs would be none
            specs[f"rope+{name}"] = f"rope+{name}:{options}" if options else f"rope+{name}"
    return specs


def _longrope_options(pairs: int) -> str:
    """Divisors rising from 1 to 4, in the manner of a search that spares the fast pairs."""
    long = ",".join(f"{4 ** (pair / max(pairs - 1, 1)):.3f}" for pair in range(pairs))
    short = ",".join("1" for _ in range(pairs))
    return f"short_factor=({short},),long_factor=({long},),factor=4"
