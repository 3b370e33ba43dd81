"""For Hugging Face models: reads, explains and extends configs, patches models, converts weights."""

from .config.api import from_config
from .config.checkpoint_frequencies import checkpoint_inv_freq
from .config.plan import ConfigError, LayerPlan, Plan, Reading, Temperature
from .doctor import Diagnosis, diagnose
from .extension import Extension, extend
from .multimodal import MRopePositions, mrope_positions
from .patching.api import patch, unpatch
from .patching.attention_interface import register_attention
from .patching.report import PatchedModule, PatchReport
from .streaming import StreamingCache, streaming_cache
from .weights import ConversionReport, to_half, to_interleaved

__all__ = [
    "ConfigError", "ConversionReport", "Diagnosis", "Extension", "LayerPlan", "MRopePositions", "PatchReport",
    "PatchedModule", "Plan", "Reading", "StreamingCache", "Temperature", "checkpoint_inv_freq", "diagnose", "extend",
    "from_config", "mrope_positions", "patch", "register_attention", "streaming_cache", "to_half", "to_interleaved",
    "unpatch",
]  # fmt: skip
