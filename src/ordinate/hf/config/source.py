"""Where a config comes from: a mapping, a file, a model's folder, or a config object. Nothing is executed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...checks import short
from .plan import ConfigError

_LARGEST_FILE = 16 * 2**20  # no config is; a checkpoint named by mistake is


def config_path(source: str | os.PathLike[str]) -> Path:
    """The config.json that a path means: the file itself, or the one in a model's folder."""
    path = Path(source)
    try:
        folder, path = path.is_dir(), path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte
        found, folder = False, False
    if not found:
        what = "a folder with a config.json" if folder else "a config.json or a folder with one"
        raise ConfigError(f"source must be {what}, got {short(str(source))}")
    return path


def load(source: object) -> dict[str, Any]:
    """A config as a dictionary with text for keys.

    Raises:
        ConfigError: The source is none, cannot be opened, or is not a mapping.
    """
    if isinstance(source, Mapping):
        return check_settings(dict(source))
    if isinstance(source, (str, os.PathLike)):
        return _from_file(config_path(source))
    to_dict = getattr(source, "to_dict", None)  # a PretrainedConfig, without importing its class
    if callable(to_dict) and not isinstance(source, type):
        return dict(check_settings(to_dict()))
    raise ConfigError(
        f"source must be a mapping, a path or a PretrainedConfig, got {type(source).__name__}"
    )


def _from_file(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ConfigError(
                f"source must be a file of at most 16 MiB, got {size} bytes in {short(str(path))}"
            )
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"source must be a file that can be read, got {short(str(path))}: {error.strerror}"
        ) from None
    try:
        return check_settings(json.loads(text.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = " ".join(reason.split())
        raise ConfigError(f"source must be valid JSON, got {short(str(path))}: {reason}") from None


def check_settings(values: object, name: str = "source") -> dict[str, Any]:
    """The same mapping, if it has text for keys; else a refusal."""
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold a mapping of settings, got {short(values)}")
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"{name} must have text for keys, got {short(key)}")
    return values
