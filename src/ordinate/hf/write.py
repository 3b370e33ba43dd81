"""Writing a config.json: whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import short
from .config.plan import ConfigError


def write_config(
    config: Mapping[str, Any], path: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Write a config.json: whole or not at all, and over an existing file only if told to."""
    target = Path(path)
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise ConfigError(
            f"path must be in a folder that can be written, got {short(str(target))}: {error.strerror}"
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        if overwrite:
            os.replace(name, target)
        else:
            os.link(name, target)  # unlike a rename, this fails where a file exists
    except IsADirectoryError:
        raise ConfigError(f"path must be a file to write, got the folder {short(str(target))}") from None
    except FileExistsError:
        raise ConfigError(
            f"path must not exist, nothing is overwritten unless told, got {short(str(target))}"
        ) from None
    finally:
        Path(name).unlink(missing_ok=True)
    return target
