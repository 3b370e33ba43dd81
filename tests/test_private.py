"""PyTorch's private names: all in one file, and where one is missing a call is slower or refused, never wrong."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import ordinate
from ordinate import private

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SOURCE = Path(ordinate.__file__).parent


class _Without:
    """A module as it would be without one of its names, ``a.b.c`` deep."""

    def __init__(self, module, path: str) -> None:
        self._module, (self._name, _, self._rest) = module, path.partition(".")

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if name != self._name:
            return found
        if not self._rest:
            raise AttributeError(f"no {name} here")
        return _Without(found, self._rest)


MISSING = [
    ("torch", "_C._functorch"),
    ("torch", "_C._functorch.peek_interpreter_stack"),
    ("torch", "_C._functorch.TransformType"),
    ("torch", "_C._functorch.is_functorch_wrapped_tensor"),
    ("torch", "_C._functorch.get_unwrapped"),
    ("torch", "ops.aten._scaled_dot_product_flash_attention_for_cpu"),
    ("torch", "ops.aten._scaled_dot_product_flash_attention_for_cpu_backward"),
    ("forward_ad", "_current_level"),
    ("_python_dispatch", "is_in_torch_dispatch_mode"),
]


ENCODING = ordinate.Combined(ordinate.RoPE(8), ordinate.ALiBi(2))


def _attend(*qkv, impl="auto"):
    return ordinate.attention(*qkv, ENCODING, causal=True, impl=impl).square().sum((1, 2, 3))


@pytest.mark.plain
@pytest.mark.parametrize(("module", "path"), MISSING, ids=[path for _, path in MISSING])
def test_without_a_private_name_no_number_is_wrong(module, path, monkeypatch):
    qkv = [torch.randn(2, 2, 6, 8) for _ in range(3)]
    tangents = tuple(torch.randn_like(x) for x in qkv)

    def answers(impl):
        def total(*tensors):
            return _attend(*tensors, impl=impl).sum()

        leaves = [x.clone().requires_grad_() for x in qkv]
        yield "eager", _attend(*qkv, impl=impl)
        yield "backward", torch.autograd.grad(total(*leaves), leaves)
        yield "grad", torch.func.grad(total, argnums=(0, 1, 2))(*qkv)
        yield "jvp", torch.func.jvp(total, tuple(qkv), tangents)
        rows = [x[:, None] for x in qkv]
        yield "vmap", torch.func.vmap(lambda *row: _attend(*row, impl=impl))(*rows)

    expected = dict(answers("reference"))
    monkeypatch.setattr(private, module, _Without(getattr(private, module), path))
    for name, found in answers("auto"):
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
    compiled = torch.compile(_attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*qkv), expected["eager"], rtol=1e-4, atol=1e-4)


def _chain(node: ast.AST) -> list[str]:
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id][::-1] if isinstance(node, ast.Name) else []


def test_private_names_of_pytorch_stand_in_one_file():
    for path in SOURCE.rglob("*.py"):
        if path.name == "private.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = _chain(node)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if names[:1] == ["torch"]:
                private_names = [
                    name for name in names if name.startswith("_") and not name.endswith("__")
                ]
                assert not private_names, f"{path}:{node.lineno} names {'.'.join(names)}"
