"""ordinate: every position encoding exact, fast and visible."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import positions as positions
from . import scaling as scaling
from .attending.api import Explanation as Explanation
from .attending.api import attention as attention
from .attending.api import explain as explain
from .attending.layer import KVCache as KVCache
from .attending.layer import MultiHeadAttention as MultiHeadAttention
from .attending.varlen import attention_varlen as attention_varlen
from .bias.alibi import ALiBi as ALiBi
from .bias.clipped import ClippedBias as ClippedBias
from .bias.shaw import Shaw as Shaw
from .bias.t5 import T5Bias as T5Bias
from .bias.types import Bias as Bias
from .bias.types import DistanceBias as DistanceBias
from .bias.types import KeyBias as KeyBias
from .bias.types import LinearBias as LinearBias
from .bias.types import RowBias as RowBias
from .bias.types import SumBias as SumBias
from .caches import clear_caches as clear_caches
from .checks import refused as _refused
from .embed.learned import Learned as Learned
from .embed.sinusoidal import Sinusoidal as Sinusoidal
from .encoding import Along as Along
from .encoding import Combined as Combined
from .encoding import NoPE as NoPE
from .encoding import PositionEncoding as PositionEncoding
from .entries import catalog as catalog
from .entries import create as create
from .entries import register as register
from .entry import Entry as Entry
from .rotate.layout import to_half as to_half
from .rotate.layout import to_interleaved as to_interleaved
from .rotate.rope import RoPE as RoPE
from .rotate.rotation import Rotation as Rotation
from .rotate.rotation import rerotate as rerotate

if _TYPE_CHECKING:
    from . import hf as hf
    from . import plots as plots
    from .verification.api import verify as verify
    from .verification.report import VerifyReport as VerifyReport
    from .verification.report import VerifyResult as VerifyResult
    from .walkthrough.api import show as show
    from .walkthrough.walk import Walk as Walk

__version__ = "0.1.0"

#: What is loaded when it is first used, and where it is.
_LAZY = {
    "hf": ".hf",
    "plots": ".plots",
    "verify": ".verification.api",
    "VerifyReport": ".verification.report",
    "VerifyResult": ".verification.report",
    "show": ".walkthrough.api",
    "Walk": ".walkthrough.walk",
}
_MODULES = ("hf", "plots", "positions", "scaling")


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        rule = "module {module} has no attribute {name}"
        raise _refused("", rule, error=AttributeError, module=repr(__name__), name=repr(name))
    module = _import_module(_LAZY[name], __name__)
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What users call; the folders of the package are found by importing them."""
    called = [
        name
        for name, value in globals().items()
        if not name.startswith("_") and getattr(value, "__name__", "") != f"{__name__}.{name}"
    ]
    return sorted({*called, *_LAZY, *_MODULES, "__version__"})
