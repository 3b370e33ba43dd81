"""Models as the Hugging Face ecosystem writes them down: their configs read, explained and extended."""

from .config import from_config as from_config
from .float32 import checkpoint_inv_freq as checkpoint_inv_freq
from .plan import ConfigError as ConfigError
from .plan import LayerPlan as LayerPlan
from .plan import Plan as Plan
from .plan import Reading as Reading
from .plan import Temperature as Temperature
