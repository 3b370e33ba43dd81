"""Models as the Hugging Face ecosystem writes them down: their configs read, explained and extended."""

from .config.api import from_config as from_config
from .config.checkpoint_frequencies import checkpoint_inv_freq as checkpoint_inv_freq
from .config.plan import ConfigError as ConfigError
from .config.plan import LayerPlan as LayerPlan
from .config.plan import Plan as Plan
from .config.plan import Reading as Reading
from .config.plan import Temperature as Temperature
from .doctor import Diagnosis as Diagnosis
from .doctor import diagnose as diagnose
from .extension import Extension as Extension
from .extension import extend as extend
from .multimodal import MRopePositions as MRopePositions
from .multimodal import mrope_positions as mrope_positions
from .patching.api import patch as patch
from .patching.api import unpatch as unpatch
from .patching.attention_interface import register_attention as register_attention
from .patching.report import PatchedModule as PatchedModule
from .patching.report import PatchReport as PatchReport
from .streaming import StreamingCache as StreamingCache
from .streaming import streaming_cache as streaming_cache
from .weights import ConversionReport as ConversionReport
from .weights import to_half as to_half
from .weights import to_interleaved as to_interleaved
