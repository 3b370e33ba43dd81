"""Two processes that train one step of a patched model sharded by blocks, and compare with the whole model.

Run by test_patch_wrapped.py as ``shard_patched.py MODEL FILE``; the two meet in FILE.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from patch_models import build, inputs
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ordinate.hf import patch

PROCESSES = 2


def loss(model: nn.Module) -> torch.Tensor:
    given = inputs(model, mask=True)
    labels = given.get("decoder_input_ids", given["input_ids"]).clone()
    if "decoder_input_ids" not in given:  # what padding predicts means nothing
        labels[given["attention_mask"] == 0] = -100
        labels[1, given["attention_mask"][1].argmax()] = -100
    return model(**given, labels=labels, use_cache=False).loss


def train(rank: int, name: str, meet: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=PROCESSES)
    whole, sharded = build(name), build(name)
    expected = loss(whole)
    expected.backward()
    patch(sharded)
    for block in [m for m in sharded.modules() if type(m).__name__.endswith(("Block", "DecoderLayer"))]:
        fully_shard(block)
    fully_shard(sharded)
    found = loss(sharded)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    found.backward()
    theirs = dict(whole.named_parameters())
    assert any("relative_attention_bias" in key for key in theirs) == (name != "Llama 2")
    for key, parameter in sharded.named_parameters():
        assert isinstance(parameter.grad, DTensor), key
        torch.testing.assert_close(
            parameter.grad.full_tensor(), theirs[key].grad, atol=1e-5, rtol=1e-4, msg=key
        )
    dist.barrier()
    dist.destroy_process_group()
    # Everything is compared. Gloo's threads outlive the group while FSDP refers to it, and one that frees a tensor
    # while the interpreter shuts down aborts the process (pytorch/pytorch#179291): leave without shutting down.
    os._exit(0)


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, args=tuple(sys.argv[1:3]), nprocs=PROCESSES)
