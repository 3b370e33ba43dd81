"""Converts checkpoints in safetensors files from one rotary layout to the other.

Only rows of the query and key projections, and of the norms of queries and keys, are reordered. All other bytes are
copied, so nothing is rounded, and at most one projection is in memory at a time.
"""

from __future__ import annotations

import functools
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import refused, short
from ..files import partial_folder, write_then_move
from ..rotate.layout import Layout
from ..rotate.layout import to_half as half_rows
from ..rotate.layout import to_interleaved as interleaved_rows
from ..rotate.rope import RoPE
from ..text import Text
from .config.api import from_config, text_reader
from .config.config_file import check_settings, load
from .config.plan import ConfigError, LayerPlan
from .config.reader import MOST_HEADS, MOST_WIDTH
from .safetensors_file import Rows, SafetensorsFile, StoredTensor

# Names of tensors whose rows are reordered; the group that matches is the kind of the tensor.
_REORDERED = re.compile(
    r"\.(?:(?P<queries>q_proj|q_b_proj|wq)|(?P<keys>k_proj|wk)|(?P<latent>kv_a_proj_with_mqa)"
    r"|(?P<fused>qkv_proj|query_key_value|Wqkv)"
    r"|(?P<query_norm>(?:q|query)_(?:layer)?norm(?:\.norms\.[0-9]+)?)"
    r"|(?P<key_norm>(?:k|key)_(?:layer)?norm(?:\.norms\.[0-9]+)?))\.(?:weight|bias)$"
)
# Names that look like queries or keys: such a tensor is reordered, or the checkpoint is refused.
_SUSPECT = re.compile(r"(?:^|[._])w?(?:q|k|qk|kv|qkv|query|key)(?=[._]|$)", re.IGNORECASE)
# Exceptions, which are copied: parts of DeepSeek's latent without rotation, models of images and audio.
_STAYS = re.compile(
    r"\.(?:(?:q_a|kv_b)_proj|(?:q|kv)_a_layernorm)\."
    r"|(?:^|\.)(?:visual|vision_\w+|audio_\w+|vqmodel|multi_modal_projector|embed_tokens_extend)\."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,9})\.")
_OWN_KEYS = (
    "gpt_neox",
    "persimmon",
    "gptj",
)  # these have as many key heads as query heads, even if the config differs
_SIDES = {"queries": {"queries", "fused"}, "keys": {"keys", "latent", "fused"}}
_METADATA_KEY = "rotary_layout"  # in the files that a conversion writes
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


class ConversionReport(NamedTuple):
    """What a conversion wrote."""

    target: Path
    layout: Layout
    converted: tuple[str, ...]
    copied: int
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        left_out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.target}: {len(self.converted)} tensors of queries and keys to the {self.layout} layout, "
            f"{self.copied} as they were{left_out}"
        )


def to_half(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, config: Any = None
) -> ConversionReport:
    """Write a checkpoint whose rotary pairs are half a head apart, from one whose pairs are neighbours.

    The layout cannot be detected from weights: the caller must know it. Files written by these functions state
    it in their metadata, and are refused if they are in the target layout already.

    Args:
        source: A safetensors file, or a model's folder with one or several.
        target: Where to write; it must not exist. A folder also gets the source's other files and subfolders,
            except weights in other formats and hidden folders: the report names these.
        config: As in `from_config`; default the config.json of the folder, or next to the file.

    Raises:
        ValueError: The source is not a checkpoint, or not all of it can be converted; or the target cannot
            be written.
        FileExistsError: The target exists, or another process writes it.
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
    if not os.path.exists(source):  # unlike Path.exists, also False for an invalid file name
        raise refused("source", "must be a safetensors file or a model's folder", short(str(source)))
    _check_target(target)
    is_folder = source.is_dir()
    folder = source if is_folder else source.parent
    heads = _Heads(folder if config is None else config, layout)
    files = _weights(source)
    changes = {file.path: heads.changes(file) for file in files}
    _check(files, changes, layout)
    others = [path for path in _others(source) if path not in changes] if is_folder else []
    left_out = [path for path in others if path.is_dir() or path.suffix in _OTHER_WEIGHTS]
    _check_subfolders(path for path in others if path.suffix == ".safetensors")
    with write_then_move(target) as written:
        if is_folder:
            written.mkdir()
        for path in others:
            if path not in left_out:
                copied = written / path.relative_to(source)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copied)
        for file in files:
            new = written / file.path.name if is_folder else written
            file.rewrite(new, changes[file.path], {_METADATA_KEY: layout})
    converted = tuple(name for names in changes.values() for name in names)
    total = sum(len(file.tensors) for file in files)
    names = tuple(str(path.relative_to(source)) for path in left_out)
    return ConversionReport(target, layout, converted, total - len(converted), names)


def _check_target(target: Path) -> None:
    quoted, partial = short(str(target)), partial_folder(target)
    if os.path.lexists(target):  # a broken link exists, too
        raise refused("target", "must not exist", quoted, error=FileExistsError)
    if not os.path.isdir(target.parent):
        raise refused("target", "must be in a folder that exists", quoted)
    try:
        with tempfile.TemporaryFile(dir=target.parent):  # in /proc, permissions do not tell
            pass
        with suppress(FileNotFoundError):
            os.lstat(partial)  # its name is longer than the target's
    except (OSError, ValueError) as error:
        raise refused(
            "target",
            "must be in a folder that can be written, with room for the name {partial} too",
            f"{quoted}: {getattr(error, 'strerror', error)}",
            partial=short(partial.name),
        ) from None


def _others(folder: Path) -> Iterator[Path]:
    """The files below a folder, and its hidden folders, whose contents belong to tools, not to the model."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from [path] if path.name.startswith(".") else _others(path)
        elif path.is_file():
            yield path
        else:  # reading a pipe would wait, and a link may lead back here
            raise refused(
                "source",
                "must hold files, links to files and folders",
                Text("{path}, which is none", path=short(str(path))),
            )


def _check_subfolders(paths: Iterable[Path]) -> None:
    """Refuse subfolders with another model and its own config; a sentence encoder's last layer, say, is copied."""
    for path in paths:
        for tensor in SafetensorsFile.open(path).tensors:
            if _may_be_reordered(tensor):
                got = Text(
                    "{tensor} in the folder {folder}",
                    tensor=short(tensor.name),
                    folder=short(path.parent.name),
                )
                raise refused("source", "must hold queries and keys beside its config.json only", got)


def _weights(source: Path) -> list[SafetensorsFile]:
    paths = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    if not paths:
        other = next((path.name for path in source.iterdir() if path.suffix in _OTHER_WEIGHTS), "none")
        raise refused("source", "must hold weights as safetensors", other)
    held = [path.name for path in paths]
    for index in source.glob("*.safetensors.index.json") if source.is_dir() else ():
        for name in check_settings(load(index).get("weight_map"), "weight_map").values():
            if name not in held:
                raise refused(
                    "source",
                    "must hold every file that {index} names",
                    Text("no {name}", name=short(name)),
                    index=index.name,
                )
    return [SafetensorsFile.open(path) for path in paths]


def _check(
    files: list[SafetensorsFile], changes: Mapping[Path, Mapping[str, Rows]], layout: Layout
) -> None:
    for file in files:
        if file.metadata.get(_METADATA_KEY) == layout:
            raise refused(
                "source", "must not be in the {layout} layout already", file.path.name, layout=layout
            )
    kinds = {name: _kind(name) for found in changes.values() for name in found}
    for side, made_by in _SIDES.items():
        if made_by.isdisjoint(kinds.values()):
            got = Text("{name} in {file}", name=next(map(short, kinds), "none"), file=files[0].path.name)
            raise refused("source", "must hold projections of {side}", got, side=Text(side))
    # The queries of all layers have one name. A second name means a copy, perhaps in Meta's layout, or a second model
    # with another config.
    names = {
        _LAYER.sub(".", name, count=1): short(name)
        for name, kind in kinds.items()
        if kind in _SIDES["queries"] and name.endswith("weight")
    }
    if len(names) > 1:
        first, second, *_ = names.values()
        raise refused(
            "source",
            "must hold the layers of one model once",
            Text("{first} and {second}", first=first, second=second),
        )


class _Heads:
    """Which rows of which tensors are reordered, by a config."""

    def __init__(self, config: Any, layout: Layout) -> None:
        values = load(config)
        self.plan = from_config(values)
        self.reorder = half_rows if layout == "half" else interleaved_rows
        if not any(isinstance(layer.encoding, RoPE) for layer in self.plan.layers):
            raise refused("config", "must be of a model with RoPE", self.plan.family, error=ConfigError)
        _, _, self.reader = text_reader(values)
        if shared := self.reader.peek(
            "attention_k_eq_v"
        ):  # Gemma 4: values would be reordered with keys
            raise refused(
                self.reader.spelled("attention_k_eq_v"),
                "must be false where keys are to turn",
                short(shared),
                error=ConfigError,
            )
        self.heads: int = self._count("num_attention_heads")
        self.kv_heads = self._kv_heads()
        # Layers for multi-token prediction follow the others, with the last layer's attention settings.
        self.count = len(self.plan.layers) + self._count("num_nextn_predict_layers", 0)

    def _count(self, key: str, default: int | None = None) -> Any:
        return self.reader.integer(key, "how many there are", default, least=0, most=MOST_HEADS)

    def _kv_heads(self) -> int:
        family, peek = self.plan.model_type, self.reader.peek
        if family in _OWN_KEYS:
            return self.heads
        if family != "falcon":
            return self._count("num_key_value_heads") or self.heads
        if peek("new_decoder_architecture"):
            return self._count("num_kv_heads") or self._count("n_head_kv") or self.heads
        return 1 if self.reader.values.get("multi_query", True) else self.heads

    def changes(self, file: SafetensorsFile) -> dict[str, Rows]:
        """Name → the function that reorders the rows, for each tensor of queries and keys."""
        found = {}
        for tensor in filter(_may_be_reordered, file.tensors):
            layer, kind = self._layer(tensor.name), _kind(tensor.name)
            if layer is not None and not isinstance(layer.encoding, RoPE):
                continue
            if layer is None or kind is None:
                raise refused(
                    "source",
                    "must hold queries and keys as plain weights and biases of known names in {layers} layers",
                    short(tensor.name),
                    layers=self.count,
                )
            found[tensor.name] = self._reordering(tensor, layer, kind)
        return found

    def _layer(self, name: str) -> LayerPlan | None:
        """The layer that a tensor belongs to, if the config has that layer."""
        number = _LAYER.search(name)
        if number is None or int(number[1]) >= self.count:
            return None
        return self.plan.layers[min(int(number[1]), len(self.plan.layers) - 1)]

    def _reordering(self, tensor: StoredTensor, layer: LayerPlan, kind: str) -> Rows:
        """The function that reorders a tensor's rows, whose number must match the config."""
        assert isinstance(layer.encoding, RoPE)
        assert layer.head_dim is not None
        head_dim, start = layer.head_dim, layer.turned_from
        if kind == "latent":  # the rotated channels of the one key follow the latent
            start = self.reader.integer("kv_lora_rank", "channels of the latent", most=MOST_WIDTH)
            head_dim = start + layer.encoding.rotary_dim
        heads = {
            "queries": [self.heads],
            "keys": [self.kv_heads],
            "latent": [1],
            "fused": [self.heads + 2 * self.kv_heads],
            "query_norm": [1, self.heads],  # one norm for all heads, or one per head
            "key_norm": [1, self.kv_heads],
        }[kind]
        rows = math.prod(tensor.shape if kind.endswith("norm") else tensor.shape[:1])
        if rows not in [count * head_dim for count in heads]:
            raise refused(
                short(tensor.name),
                "must have {rows} rows by the config",
                rows,
                rows=" or ".join(f"{count} × {head_dim}" for count in heads),
            )
        if not tensor.size or tensor.size % rows:
            raise refused(
                short(tensor.name),
                "must have rows of whole bytes",
                f"{tensor.dtype} {short(list(tensor.shape))}",
            )
        rotary_dim = layer.encoding.rotary_dim
        channels = torch.arange(head_dim, dtype=torch.float32)
        rotated = channels[start : start + rotary_dim]
        channels[start : start + rotary_dim] = self.reorder(rotated, head_dim=rotary_dim)
        turn: Rows = functools.partial(_reorder, tuple(map(int, channels.tolist())))
        if kind == "fused":
            turn = self._fused(tensor, turn, head_dim)
        return functools.partial(_by_rows, turn, rows)

    def _fused(self, tensor: StoredTensor, turn: Rows, head_dim: int) -> Rows:
        """Queries, keys and values in one projection: one block for each, or interleaved by group."""
        if self.plan.model_type in ("gpt_neox", "persimmon", "falcon"):
            return functools.partial(_by_group, turn, self.kv_heads, head_dim)
        # CodeGen's projection of this name has four parts, each with queries, values and keys.
        if "qkv_proj" not in tensor.name or self.plan.model_type == "codegen":
            raise refused("source", "must be of a known kind of fused projection", short(tensor.name))
        return functools.partial(_leading, turn, (self.heads + self.kv_heads) * head_dim)


def _may_be_reordered(tensor: StoredTensor) -> bool:
    """Whether a tensor's name is one of a text model's projection of queries or keys."""
    return bool(_SUSPECT.search(tensor.name)) and not _STAYS.search(tensor.name)


def _kind(name: str) -> str | None:
    found = _REORDERED.search(name)
    return found and found.lastgroup


def _by_rows(turn: Rows, count: int, rows: Tensor) -> Tensor:
    """Reorder norms with one row per head: their channels are in the order of a projection's rows."""
    return turn(rows.view(count, -1)).view_as(rows)


def _reorder(order: tuple[int, ...], rows: Tensor) -> Tensor:
    """Reorder the rows of every head."""
    return rows.unflatten(0, (-1, len(order)))[:, list(order)].flatten(0, 1)


def _by_group(turn: Rows, groups: int, head_dim: int, rows: Tensor) -> Tensor:
    """Reorder all but the values in ``[groups, (queries…, key, value), head_dim]``."""
    heads = rows.unflatten(0, (groups, -1, head_dim)).clone()
    heads[:, :-1] = turn(heads[:, :-1].flatten(0, 2)).view_as(heads[:, :-1])
    return heads.flatten(0, 2)


def _leading(turn: Rows, count: int, rows: Tensor) -> Tensor:
    """Reorder the first rows, which are queries and keys."""
    return torch.cat((turn(rows[:count]), rows[count:]))
