"""Write the parts of the documentation that the catalog knows: ``python docs/build.py``.

A page marks its generated part with ``<!-- catalog:NAME -->`` and ``<!-- /catalog -->``; what stands
between is replaced by the table or the list of that name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import ordinate
from ordinate.entries import example_specs

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "README.zh.md", "docs/encodings.md")

#: The model whose parameters are counted.
SIZES = {"d_model": 512, "num_heads": 8, "head_dim": 64, "max_positions": 4096}

_PLACES = {
    "none": ("nowhere", "无"),
    "embed": ("added to the embeddings", "加到词嵌入上"),
    "rotate": ("turns queries and keys", "旋转 q 和 k"),
    "bias": ("added to the logits", "加到注意力分数上"),
    "scaling": ("stretches RoPE's frequencies", "拉伸 RoPE 的频率"),
}
_MARKED = re.compile(r"(<!-- catalog:(\S+) -->\n).*?(<!-- /catalog -->)", re.DOTALL)


def render(text: str) -> str:
    """A page with its generated parts made anew."""
    return _MARKED.sub(lambda part: part[1] + _PARTS[part[2]]() + part[3], text)


def public_name(cls: type) -> str:
    """Where users find a class: ``RoPE``, ``scaling.YaRN``."""
    for prefix, module in (("", ordinate), ("scaling.", ordinate.scaling)):
        for name, value in vars(module).items():
            if value is cls:
                return prefix + name
    raise LookupError(f"{cls.__name__} must be public, found it nowhere in ordinate")


def count_parameters(name: str) -> int:
    encoding = ordinate.create(example_specs(SIZES["head_dim"])[name], **SIZES)
    return sum(parameter.numel() for parameter in encoding.parameters())


def _encodings_table(head: str, learned: str, fixed: str, language: int) -> str:
    rows = [head, "|---|---|---|---|---:|---|"]
    for entry in ordinate.catalog.values():
        if entry.is_scaling:
            continue
        rows.append(
            f"| `{entry.name}` | `{public_name(entry.cls)}` | {_PLACES[entry.hook][language]} | "
            f"{learned if entry.learned else fixed} | {count_parameters(entry.name):,} | {_paper(entry)} |"
        )
    return "\n".join(rows) + "\n"


def _english() -> str:
    head = "| name | class | where it acts | learned or fixed | parameters | paper |"
    return _encodings_table(head, "learned", "fixed", 0)


def _chinese() -> str:
    head = "| 名称 | 类 | 作用位置 | 可学习还是固定 | 参数量 | 论文 |"
    return _encodings_table(head, "可学习", "固定", 1)


def _scalings() -> str:
    names = [f"`{entry.name}`" for entry in ordinate.catalog.values() if entry.is_scaling]
    return ", ".join(names) + "\n"


def _reference() -> str:
    return "\n".join(_section(entry) for entry in ordinate.catalog.values())


def _section(entry: ordinate.Entry) -> str:
    name = public_name(entry.cls)
    doc = inspect.getdoc(entry.cls) or ""
    spec = example_specs(8)[f"rope+{entry.name}" if entry.is_scaling else entry.name]
    lines = [
        f"### {entry.name}",
        "",
        doc.splitlines()[0],
        "",
        f"- **Class** `ordinate.{name}({_signature(entry.cls)})`",
        f"- **Acts** {_PLACES[entry.hook][0]}; {'learned' if entry.learned else 'fixed'}",
        f"- **Formula** `{entry.formula}`",
        f'- **Spec** `ordinate.create("{spec}", …)`',
        f"- **Claims** {', '.join(sorted(getattr(entry.cls, 'claims', ()))) or 'none of its own'}",
        f"- **Paper** {_paper(entry)}, {entry.year}",
        f"- **Used by** {entry.used_by}",
        "",
    ]
    return "\n".join(lines)


def _signature(cls: type) -> str:
    if cls is ordinate.NoPE:
        return ""  # the bare base class takes nn.Module's arbitrary arguments, which mean nothing
    parts = []
    for parameter in inspect.signature(cls).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        parts.append(parameter.name + default)
    return ", ".join(parts)


def _paper(entry: ordinate.Entry) -> str:
    return f"[{entry.paper}](https://arxiv.org/abs/{entry.paper.removeprefix('arXiv:')})"


_PARTS: dict[str, Callable[[], str]] = {
    "english": _english,
    "chinese": _chinese,
    "scalings": _scalings,
    "reference": _reference,
}


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
