"""A kernel that cannot be had with its pipeline is compiled with a shorter one, and says so."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the kernels are Triton's")

pytestmark = pytest.mark.plain


class _Kernel:
    """Stands in for one that the compiler or the device takes with so many stages and no more."""

    __name__ = "_some_kernel"

    def __init__(self, error: Exception, most: int) -> None:
        self.error, self.most, self.tried = error, most, []

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *, num_stages, **arguments):
        self.tried.append(num_stages)
        if num_stages > self.most:
            raise self.error
        return f"with {num_stages}"


def _errors() -> list[Exception]:
    from triton.runtime.errors import OutOfResources, PTXASError

    return [PTXASError("`ptxas` failed with error code -11"), OutOfResources(200, 100, "shared memory")]


def _launch(kernel: _Kernel) -> dict:
    from ordinate.kernels.launch import Step

    step = Step(kernel, (1,), {"num_stages": 3, "M": 16})
    step._launch({"q_ptr": torch.zeros(16)})
    return step.compiled


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("most", [1, 2])
def test_stages_are_given_up_one_by_one(error, most):
    kernel = _Kernel(error, most)
    with pytest.warns(UserWarning, match=f"_some_kernel has {most} pipeline stages, 3 were too many"):
        compiled = _launch(kernel)
    assert kernel.tried == [3, 2, 1][: 4 - most]
    assert list(compiled.values()) == [f"with {most}"]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
def test_what_fails_with_one_stage_too_is_raised(error):
    with pytest.raises(type(error)):
        _launch(_Kernel(error, most=0))


def test_other_errors_are_raised_at_once():
    kernel = _Kernel(ValueError("something else"), most=0)
    with pytest.raises(ValueError, match="something else"):
        _launch(kernel)
    assert kernel.tried == [3]
