"""A run's numbers as TensorBoard event files, besides its records."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from ..records import Metric


class EventFile:
    """Takes the lines of a run's metrics as they come.

    An interrupted run begins its events anew from its records, so no step is there twice; a run that is over
    sends none, and keeps those it has.
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
            # The length takes the place of the step, so that a curve over lengths can be looked at.
            arm = metric["extension"] or "as trained"
            for name in ("loss", "last_loss", "gain", "accuracy"):
                if metric[name] is not None:
                    self._writer.add_scalar(f"length/{arm}/{name}", metric[name], metric["length"])
        self._writer.flush()
