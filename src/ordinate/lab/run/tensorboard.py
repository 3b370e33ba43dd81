"""A run's numbers as TensorBoard event files, in addition to its records."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from ..records import Metric


class EventFile:
    """An observer that writes the lines of a run's metrics as events.

    A resumed run writes all its events again from its records, so that no step is there twice; a run that is over
    writes none, and its events stay.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @cached_property
    def _writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(self.directory, ignore_errors=True)
        return SummaryWriter(str(self.directory))

    def __call__(self, metric: Metric) -> None:
        if metric["kind"] in ("train", "validation"):
            for name in ("loss", "grad_norm", "learning_rate"):
                if name in metric:
                    self._writer.add_scalar(f"{metric['kind']}/{name}", metric[name], metric["step"])
        elif metric["kind"] == "evaluation" and metric["refused"] is None:
            # The length is written as the step, for a curve over lengths.
            arm = metric["extension"] or "as trained"
            for name in ("loss", "last_loss", "gain", "accuracy"):
                if metric[name] is not None:
                    self._writer.add_scalar(f"length/{arm}/{name}", metric[name], metric["length"])
        self._writer.flush()
