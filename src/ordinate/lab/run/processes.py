"""`Processes`: the processes that train one model together, as started by torchrun; by default only this one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes. Only the main one, rank 0, writes records and prints."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: str) -> Processes:
        """Connect to the other processes that ``torchrun`` started."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        return cls(distributed.get_rank(), size)

    def close(self) -> None:
        if self.size > 1:
            distributed.destroy_process_group()

    @property
    def main(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """The main process's value, in every process."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def sum_over_processes(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(value)
        return value

    def any(self, here: bool) -> bool:
        """Whether a flag is set in any of the processes."""
        if self.size == 1:
            return here
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, here)
        return any(found)

    def own_rows(self, batch: Tensor) -> Tensor:
        """The rows of a batch that this process computes."""
        rows = batch.shape[0] // self.size
        return batch[self.rank * rows : (self.rank + 1) * rows]

    def synchronised(self, model: nn.Module) -> nn.Module:
        """A model whose gradients are averaged over all processes."""
        return nn.parallel.DistributedDataParallel(model) if self.size > 1 else model
