"""The examples in the docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import torch

import ordinate

pytestmark = pytest.mark.plain  # examples are for users, who have no shape checker

# Kernels need Triton at import; their examples are run by whoever has it.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ordinate.__path__, "ordinate.")
    if not module.name.startswith("ordinate.kernels")
)

_FINDER = doctest.DocTestFinder(exclude_empty=True)


@pytest.mark.parametrize("name", ["ordinate", *MODULES])
def test_the_examples_of_a_module_print_what_they_say(name):
    module = importlib.import_module(name)
    names = {**vars(module), "torch": torch, "ordinate": ordinate}
    report: list[str] = []
    for example in _FINDER.find(module, module.__name__, extraglobs=names):
        torch.manual_seed(0)
        runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(example, out=report.append)
    assert "".join(report) == ""


def test_there_are_examples_to_run():
    found = [
        example.name
        for name in MODULES
        for example in _FINDER.find(importlib.import_module(name), name)
        if example.examples
    ]
    assert len(found) >= 25
