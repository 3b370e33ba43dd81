"""Models as the Hugging Face ecosystem writes them down: their configs read, explained and extended."""

from .attention_interface import register_attention as register_attention
from .config import from_config as from_config
from .doctor import Diagnosis as Diagnosis
from .doctor import diagnose as diagnose
from .extend import Extension as Extension
from .extend import extend as extend
from .float32 import checkpoint_inv_freq as checkpoint_inv_freq
from .multimodal import MRopePositions as MRopePositions
from .multimodal import mrope_positions as mrope_positions
from .patch import PatchedModule as PatchedModule
from .patch import PatchReport as PatchReport
from .patch import patch as patch
from .patch import unpatch as unpatch
from .plan import ConfigError as ConfigError
from .plan import LayerPlan as LayerPlan
from .plan import Plan as Plan
from .plan import Reading as Reading
from .plan import Temperature as Temperature
from .streaming import StreamingCache as StreamingCache
from .streaming import streaming_cache as streaming_cache
from .weights import ConversionReport as ConversionReport
from .weights import to_half as to_half
from .weights import to_interleaved as to_interleaved
