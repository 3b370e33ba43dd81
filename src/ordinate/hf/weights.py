"""Whole checkpoints from one rotary layout to the other: safetensors in, safetensors out.

Only rows of the query and key projections (and of what is multiplied onto queries and keys, such as their
norms) change places. Everything else is copied as it lies in the file, so nothing is rounded or reordered, and no
more than one projection is in memory at a time.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import short
from ..rotate.layout import Layout
from ..rotate.layout import to_half as half_rows
from ..rotate.layout import to_interleaved as interleaved_rows
from ..rotate.rope import RoPE
from .config import from_config
from .partial import whole_or_not_at_all
from .plan import ConfigError, LayerPlan
from .reader import MOST_HEADS, Reader
from .safetensors_file import Rows, SafetensorsFile, StoredTensor
from .source import check_settings, load

_PROJECTION = re.compile(r"\.(?P<side>[qk])_proj\.(weight|bias)$|\.w(?P<meta>[qk])\.weight$")
_LATENT = re.compile(r"\.(q_b_proj|kv_a_proj_with_mqa)\.(weight|bias)$")  # DeepSeek
_NORM = re.compile(r"\.(q|k|query|key)_(norm|layernorm)\.(weight|bias)$")
_FUSED = re.compile(r"\.(qkv_proj|query_key_value|Wqkv)\.(weight|bias)$")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,9})\.")
_NOT_TEXT = re.compile(r"(^|\.)(visual|vision_tower|vision_model|audio_tower|mtp)\.")
_SUSPECT = re.compile(r"\.([qk]_proj|w[qk]|q_b_proj|kv_a_proj_with_mqa|qkv_proj|query_key_value)\.")
_MARK = "rotary_layout"  # in the metadata of what is written
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


class ConversionReport(NamedTuple):
    """What a conversion wrote."""

    target: Path
    layout: Layout
    converted: tuple[str, ...]
    copied: int

    def __str__(self) -> str:
        return (
            f"{self.target}: {len(self.converted)} tensors of queries and keys to the {self.layout} layout, "
            f"{self.copied} as they were"
        )


def to_half(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, config: Any = None
) -> ConversionReport:
    """Write a checkpoint whose rotary pairs are half a head apart, from one whose pairs are neighbours.

    Weights do not tell which layout they are in: know it from where they come. A file that these
    functions wrote does tell, in its metadata, and is not converted to what it is.

    Args:
        source: A safetensors file, or a model's folder with one or several.
        target: Where to write; it must not exist. A folder gets the source's other files too.
        config: What `from_config` takes; default the config.json of the folder, or beside the file.

    Raises:
        ValueError: The source is no such checkpoint.
        FileExistsError: The target is there already, or another process writes it.
        ConfigError: The config cannot be read.
    """
    return _convert(source, target, config, "half")


def to_interleaved(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, config: Any = None
) -> ConversionReport:
    """Write a checkpoint whose rotary pairs are neighbours, from one whose pairs are half a head apart.

    The exact inverse of `to_half`, with the same arguments.
    """
    return _convert(source, target, config, "interleaved")


def _convert(source: Any, target: Any, config: Any, layout: Layout) -> ConversionReport:
    source, target = Path(source), Path(target)
    if not source.exists():
        raise ValueError(f"source must be a safetensors file or a model's folder, got {str(source)!r}")
    if target.exists():
        raise FileExistsError(f"target must not exist, got {str(target)!r}")
    if not target.parent.is_dir():
        raise ValueError(f"target must be in a folder that exists, got {str(target)!r}")
    if config is None:
        config = source if source.is_dir() else source.parent
    heads = _Heads(config, layout)
    files = _weights(source)
    changes = {file.path: heads.changes(file) for file in files}
    _check(files, changes, layout)
    mark = {_MARK: layout}
    with whole_or_not_at_all(target) as written:
        if source.is_dir():
            _write_folder(source, written, files, changes, mark)
        else:
            files[0].rewrite(written, changes[source], mark)
    converted = tuple(name for names in changes.values() for name in names)
    total = sum(len(file.tensors) for file in files)
    return ConversionReport(target, layout, converted, total - len(converted))


def _weights(source: Path) -> list[SafetensorsFile]:
    paths = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    if not paths:
        other = next((path.name for path in source.iterdir() if path.suffix in _OTHER_WEIGHTS), "none")
        raise ValueError(f"source must hold weights as safetensors, got {other}")
    held = [path.name for path in paths]
    for index in source.glob("*.safetensors.index.json") if source.is_dir() else ():
        for name in check_settings(load(index).get("weight_map"), "weight_map").values():
            if name not in held:
                raise ValueError(
                    f"source must hold every file that {index.name} names, got no {short(name)}"
                )
    return [SafetensorsFile.open(path) for path in paths]


def _check(
    files: list[SafetensorsFile], changes: Mapping[Path, Mapping[str, Rows]], layout: Layout
) -> None:
    for file in files:
        if file.metadata.get(_MARK) == layout:
            raise ValueError(f"source must not be in the {layout} layout already, got {file.path.name}")
    converted = {name for found in changes.values() for name in found}
    if not converted:
        raise ValueError(
            f"source must hold projections of queries and keys, got none in {files[0].path.name}"
        )
    for file in files:
        for tensor in file.tensors:
            suspect = _SUSPECT.search(tensor.name) and not _NOT_TEXT.search(tensor.name)
            if (
                suspect
                and tensor.name not in converted
                and not tensor.name.endswith((".weight", ".bias"))
            ):
                raise ValueError(f"source must hold plain weights and biases, got {short(tensor.name)}")
    sides, metas = {"q": 0, "k": 0}, set()
    for name in converted:
        found = _PROJECTION.search(name)
        if found:
            sides[found["side"] or found["meta"]] += 1
            metas.add(found["side"] is None)
    if len(metas) > 1:  # Meta's and transformers' files of one model are in different layouts
        raise ValueError("source must hold its weights once, got projections named wq and q_proj")
    if sides["q"] and not sides["k"] and not any(_LATENT.search(name) for name in converted):
        raise ValueError(
            f"source must hold keys as well as queries, got {sides['q']} projections of queries"
        )


class _Heads:
    """Which rows of which tensors change places, by a config."""

    def __init__(self, config: Any, layout: Layout) -> None:
        self.plan = from_config(config)
        values = load(config)
        self.values: dict[str, Any] = values.get("text_config") or values
        self.reorder = half_rows if layout == "half" else interleaved_rows
        if not any(isinstance(layer.encoding, RoPE) for layer in self.plan.layers):
            raise ConfigError(f"config must be of a model with RoPE, got {self.plan.family}")

    def changes(self, file: SafetensorsFile) -> dict[str, Rows]:
        found = {}
        for tensor in file.tensors:
            rows = self._rows(tensor)
            if rows is not None:
                found[tensor.name] = rows
        return found

    def _layer(self, name: str) -> LayerPlan | None:
        """The layer a tensor belongs to, if that layer rotates."""
        number = _LAYER.search(name)
        if number is None or _NOT_TEXT.search(name) or int(number[1]) >= len(self.plan.layers):
            return None
        layer = self.plan.layers[int(number[1])]
        return layer if isinstance(layer.encoding, RoPE) else None

    def _rows(self, tensor: StoredTensor) -> Rows | None:
        layer = self._layer(tensor.name)
        rows = None if layer is None else self._turned(tensor, layer)
        if rows is not None and (not tensor.size or tensor.size % tensor.shape[0]):
            raise ValueError(
                f"{short(tensor.name)} must have rows of whole bytes, "
                f"got {tensor.dtype} {short(list(tensor.shape))}"
            )
        return rows

    def _turned(self, tensor: StoredTensor, layer: LayerPlan) -> Rows | None:
        head_dim, first = layer.head_dim, tensor.shape[0] if tensor.shape else 1
        assert head_dim is not None
        if _FUSED.search(tensor.name):
            return self._fused(tensor, layer)
        if tensor.name.rsplit(".", 2)[-2] == "kv_a_proj_with_mqa":
            return self._turn(
                layer, first, first, tensor.name
            )  # one key's rotated channels, after the latent
        if _PROJECTION.search(tensor.name) or _LATENT.search(tensor.name):
            return self._turn(layer, head_dim, first, tensor.name)
        if _NORM.search(tensor.name) and first % head_dim == 0:
            return self._turn(layer, head_dim, first, tensor.name)
        return None

    def _turn(self, layer: LayerPlan, head_dim: int, rows: int, name: str) -> Rows:
        """Reorder the channels that turn, in every head of ``head_dim`` rows."""
        assert isinstance(layer.encoding, RoPE)
        turning = layer.encoding.rotary_dim
        if head_dim < turning:
            raise ValueError(f"{short(name)} must have at least {turning} rows, got {rows}")
        if rows % head_dim:
            raise ValueError(
                f"{short(name)} must have a multiple of head_dim {head_dim} rows, got {rows}"
            )
        # Where the rotation starts within a head: after what the plan says does not turn, or at the end.
        start = layer.turned_from if head_dim == layer.head_dim else head_dim - turning
        channels = torch.arange(head_dim, dtype=torch.float32)
        channels[start : start + turning] = self.reorder(
            channels[start : start + turning], head_dim=turning
        )
        return functools.partial(_reorder, tuple(map(int, channels.tolist())))

    def _fused(self, tensor: StoredTensor, layer: LayerPlan) -> Rows:
        """Queries, keys and values in one projection: a block of each, or all three group by group."""
        head_dim, rows = layer.head_dim, tensor.shape[0] if tensor.shape else 1
        assert head_dim is not None
        turn = self._turn(layer, head_dim, rows, tensor.name)
        heads = self._count("num_attention_heads") or 0
        held = rows // head_dim  # heads of queries, of keys and of values
        groups = self._groups(held)
        if groups and held % groups == 0 and heads in (0, held - 2 * groups):
            return functools.partial(_by_group, turn, groups, head_dim)
        kv_heads = self._count("num_key_value_heads") or heads
        # CodeGen's projection of this name is in four parts, each of queries, values and keys.
        blocks = "qkv_proj" in tensor.name and self.plan.model_type != "codegen"
        if not blocks or rows != (heads + 2 * kv_heads) * head_dim:
            raise ValueError(
                f"source must be of a known kind of fused projection, got {short(tensor.name)}"
            )
        return functools.partial(_leading, turn, (heads + kv_heads) * head_dim)

    def _groups(self, heads: int) -> int | None:
        """How many groups of queries with their key and value a projection holds; None where it has blocks."""
        family, values = self.plan.model_type, self.values
        if family in ("gpt_neox", "persimmon"):
            return heads // 3
        if family != "falcon":
            return None
        if values.get("new_decoder_architecture"):
            return self._count("num_kv_heads") or self._count("n_head_kv") or heads // 3
        return 1 if values.get("multi_query", True) else heads // 3

    def _count(self, key: str) -> int | None:
        given = self.values.get(key)
        return None if given is None else Reader.checked_integer(key, given, 0, MOST_HEADS)


def _reorder(order: tuple[int, ...], rows: Tensor) -> Tensor:
    """The rows of every head in another order."""
    return rows.unflatten(0, (-1, len(order)))[:, list(order)].flatten(0, 1)


def _by_group(turn: Rows, groups: int, head_dim: int, rows: Tensor) -> Tensor:
    """``[groups, (queries…, key, value), head_dim]``: all but the values."""
    heads = rows.unflatten(0, (groups, -1, head_dim)).clone()
    turned = turn(heads[:, :-1].flatten(0, 2))
    heads[:, :-1] = turned.view_as(heads[:, :-1])
    return heads.flatten(0, 2)


def _leading(turn: Rows, count: int, rows: Tensor) -> Tensor:
    """The first rows, which are queries and keys."""
    return torch.cat((turn(rows[:count]), rows[count:]))


def _write_folder(
    source: Path,
    target: Path,
    files: list[SafetensorsFile],
    changes: Mapping[Path, Mapping[str, Rows]],
    mark: Mapping[str, str],
) -> None:
    """The source's folder again, with other weights."""
    target.mkdir()
    rewritten = {file.path for file in files}
    for path in source.iterdir():
        if path.is_file() and path not in rewritten and path.suffix not in _OTHER_WEIGHTS:
            shutil.copy2(path, target / path.name)
    for file in files:
        file.rewrite(target / file.path.name, changes[file.path], mark)
