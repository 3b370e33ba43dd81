"""Loading a config from a mapping, a file, a model's folder or a config object, and writing a config.json."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checks import refused, short
from ...files import write_file
from ...text import Text
from .plan import ConfigError

_LARGEST_FILE = 16 * 2**20  # a larger file is not a config, perhaps a checkpoint given by mistake

# Errors of a folder that is missing or cannot be written.
_NOT_WRITABLE = (
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


def config_path(source: str | os.PathLike[str]) -> Path:
    """The config.json of a path: the file itself, or the file in a model's folder."""
    path, folder = Path(source), False
    try:
        folder = path.is_dir()
        path = path / "config.json" if folder else path
        found = path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte
        found = False
    if not found:
        rule = "must be a config.json or a folder with one"
        if folder:
            rule = "must be a folder with a config.json"
        raise refused("source", rule, short(str(source)), error=ConfigError)
    return path


def load(source: object) -> dict[str, Any]:
    """A config as a dictionary whose keys are strings.

    Raises:
        ConfigError: The source is not a config, cannot be opened, or is not a mapping.
    """
    if isinstance(source, Mapping):
        return check_settings(dict(source))
    if isinstance(source, (str, os.PathLike)):
        return _from_file(config_path(source))
    to_dict = getattr(source, "to_dict", None)  # a PretrainedConfig, without importing its class
    if callable(to_dict) and not isinstance(source, type):
        return dict(check_settings(to_dict()))
    raise refused(
        "source",
        "must be a mapping, a path or a PretrainedConfig",
        type(source).__name__,
        error=ConfigError,
    )


def _from_file(path: Path) -> dict[str, Any]:
    quoted = short(str(path))
    try:
        size = path.stat().st_size
        text = path.read_bytes() if size <= _LARGEST_FILE else b""
    except OSError as error:
        raise refused(
            "source", "must be a file that can be read", f"{quoted}: {error.strerror}", error=ConfigError
        ) from None
    if size > _LARGEST_FILE:
        raise refused(
            "source",
            "must be a file of at most 16 MiB",
            Text("{size} bytes in {path}", size=size, path=quoted),
            error=ConfigError,
        )
    try:
        values = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise refused(
            "source", "must be valid JSON", f"{quoted}: {' '.join(reason.split())}", error=ConfigError
        ) from None
    return check_settings(values)


def check_settings(values: object, name: str = "source") -> dict[str, Any]:
    """The mapping as a dict; refused if it is not a mapping or has keys that are not strings."""
    if not isinstance(values, dict):
        raise refused(name, "must hold a mapping of settings", short(values), error=ConfigError)
    for key in values:
        if not isinstance(key, str):
            raise refused(name, "must have text for keys", short(key), error=ConfigError)
    return values


def write_config(
    config: Mapping[str, Any], path: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Write a config.json atomically; replace an existing file only with ``overwrite``.

    Raises:
        ConfigError: The file exists, or cannot be written there.
    """
    target = Path(path)
    quoted = short(str(target))
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        write_file(target, text.encode(), overwrite=overwrite)
    except IsADirectoryError:
        raise refused(
            "path", "must be a file to write", Text("the folder {path}", path=quoted), error=ConfigError
        ) from None
    except FileExistsError:
        raise refused(
            "path", "must not exist, nothing is overwritten unless told", quoted, error=ConfigError
        ) from None
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise refused(
            "path",
            "must be in a folder that can be written",
            f"{quoted}: {error.strerror}",
            error=ConfigError,
        ) from None
    return target
