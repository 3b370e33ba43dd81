"""Fused kernels for CUDA: a place kept until they are here."""

from __future__ import annotations

from .call import Call, Result


def unsupported_reasons(call: Call) -> list[str]:
    return ["fused kernels are not part of this version"]


def run(call: Call) -> Result:
    raise NotImplementedError("; ".join(unsupported_reasons(call)))
