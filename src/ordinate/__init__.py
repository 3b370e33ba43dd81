"""ordinate: every position encoding exact, fast and visible."""

from . import hf as hf
from . import plots as plots
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
from .catalog import Entry as Entry
from .catalog import catalog as catalog
from .catalog import create as create
from .embed.learned import Learned as Learned
from .embed.sinusoidal import Sinusoidal as Sinusoidal
from .encoding import Along as Along
from .encoding import Combined as Combined
from .encoding import NoPE as NoPE
from .encoding import PositionEncoding as PositionEncoding
from .rotate.layout import to_half as to_half
from .rotate.layout import to_interleaved as to_interleaved
from .rotate.rope import RoPE as RoPE
from .rotate.rotation import Rotation as Rotation
from .rotate.rotation import rerotate as rerotate
from .show.api import show as show
from .show.walk import Walk as Walk
from .verify.api import verify as verify
from .verify.report import VerifyReport as VerifyReport
from .verify.report import VerifyResult as VerifyResult

__version__ = "0.1.0"
