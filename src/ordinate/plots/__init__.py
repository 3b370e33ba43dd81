"""Pictures of encodings: `plot` for notebooks and papers, `save` for files, `picture` for the numbers themselves.

ordinate.plots.plot("rope", "waves", pairs=(0, 15, 31))
ordinate.plots.save("t5:bidirectional=true", "buckets.png", positions=12)
"""

from __future__ import annotations

from .api import figure_of as figure_of
from .api import picture as picture
from .api import plot as plot
from .api import save as save
from .api import save_picture as save_picture
from .kinds import KINDS as KINDS
from .kinds import default_kind as default_kind
from .kinds import kinds_of as kinds_of
from .pictures import Picture as Picture
