"""20,000 broken configs: each is read, or refused in one sentence; nothing else, and in little memory."""

# ruff: noqa: E501  tables of nonsense
from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ordinate import PositionEncoding
from ordinate.hf import ConfigError, diagnose, from_config
from ordinate.hf.config.families.registry import FAMILIES, WRAPPERS

pytestmark = pytest.mark.plain  # a shape checker would refuse what is to be refused by us

_MEBIBYTE = 2**20
LIMIT = 256 * _MEBIBYTE

_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "truncate": True,
}
_SCALINGS: list[dict[str, Any]] = [
    {"type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    _YARN,
    {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "attention_factor": 1.2},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 1024},
    {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32,
     "original_max_position_embeddings": 1024},
    {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    {"type": "mrope", "mrope_section": [16, 8, 8]},
    {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": _YARN},
]  # fmt: skip


def seeds() -> list[dict[str, Any]]:
    """A config of every family, with its keys written out, and every scaling."""
    found: list[dict[str, Any]] = []
    for name, family in FAMILIES.items():
        named = {family.keys.get(key, key): value for key, value in family.defaults.items()}
        base = {"model_type": name, "num_hidden_layers": 6, **named}
        found.append({key: copy.deepcopy(value) for key, value in base.items() if value is not None})
    sized = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4, "max_position_embeddings": 4096,
             "rope_theta": 1e4, "layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 128}  # fmt: skip
    for scaling in _SCALINGS:
        for key in ("rope_scaling", "rope_parameters"):
            for name in ("llama", "gemma3_text", "qwen2_vl_text", "deepseek_v3", "gpt_oss", "smollm3"):
                found.append({"model_type": name, **sized, key: copy.deepcopy(scaling)})
    for outer, inner in WRAPPERS.items():
        found.append(
            {
                "model_type": outer,
                "text_config": {"model_type": inner, **sized},
                "vision_config": {"a": 1},
            }
        )
    found.append(
        {"model_type": "mpt", "attn_config": {"alibi": True, "alibi_bias_max": 8, "softmax_scale": None}}
    )
    found.append(
        {"model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 2]]}
    )
    return found


_WORDS = ["rope_theta", "rope_scaling", "rope_type", "type", "factor", "alibi", "position_embedding_type", "layer_types",
          "sliding_window", "rope_interleaved", "use_rope", "yarn_beta", "ntk_alpha", "model_type", "text_config",
          "relative_bias", "head_dim", "max_position_embeddings", "vocab_size", "", "\n", "ключ"]  # fmt: skip


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if depth % 2 else {"x": value}
    return value


def nonsense(rng: random.Random) -> Any:
    """A value that a config has no business with, or that is only a little off."""
    if rng.random() < 0.3:
        return rng.choice(
            [None, True, False, 1, 2, 8, 64, 96, 128, 2048, 4096, 0.25, 0.5, 1.0, 2.0, 8.0, 1e4, 1e6]
        )
    return rng.choice([
        None, True, False, 0, 1, -1, 2, 3, 7, 64, 65, 10**6, 10**9, 2**31, 2**63, 10**18, 10**30, 10**400, -(10**400), -(2**63),
        0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 4096.0, 1e-300, 1e300, -1e300, math.nan, math.inf, -math.inf, 1e15, 5e-324,
        "", "default", "yarn", "linear", "4096", "nan", "full_attention", "x" * 100_000, "a\nb", "\x00", "\ud800",
        [], [0], [1, 1, 1, 0], [None], [math.nan] * 4, ["full_attention"] * 4, [1.0] * 32, list(range(5000)), [[]], [{}], (1, 2),
        {}, {"rope_type": "yarn"}, {"factor": 2}, {"full_attention": None}, {"full_attention": {}}, {1: 2}, {None: None},
        {"type": {"type": {}}}, deep(50), deep(3000), b"bytes", set(), object(), lambda: 1, complex(1, 1), 1 << 5000,
    ])  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a config, containers included."""
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [path] if path else []
    for key, inner in items:
        if len(path) < 4:
            found += places(inner, (*path, key))
    return found


def mutate(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to three changes anywhere."""
    config = copy.deepcopy(config)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(places(config) or [("model_type",)])
        holder: Any = config
        for key in path[:-1]:
            holder = holder[key]
        last, kind = path[-1], rng.random()
        if kind < 0.55:
            holder[last] = nonsense(rng)
        elif kind < 0.7 and isinstance(holder, dict):
            del holder[last]
        elif kind < 0.85 and isinstance(holder, dict):
            holder[rng.choice(_WORDS)] = nonsense(rng)
        elif isinstance(holder, dict):
            holder[rng.choice(_WORDS)] = holder.pop(last)
        else:
            holder.append(nonsense(rng))
    return config


def one_sentence(error: ConfigError) -> bool:
    text = str(error)
    return 10 < len(text) < 1000 and "\n" not in text and text.isprintable() and " must " in text


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Nothing may be allocated beyond what is there now and 256 MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def verdict(config: dict[str, Any]) -> str:
    """``"read"``, ``"refused"``, or what went wrong."""
    try:
        plan = from_config(config)
        for layer in plan.layers:
            if not isinstance(layer.encoding, PositionEncoding) or not math.isfinite(
                layer.softmax_scale
            ):
                return f"a layer without an encoding or a scale: {layer.index}"
        owners = dict.fromkeys([*(x.encoding for x in plan.layers), *plan.embeddings.values()])
        if not all(parameter.is_meta for owner in owners for parameter in owner.parameters()):
            return "a table that takes memory"
        return "read"
    except ConfigError as error:
        return "refused" if one_sentence(error) else f"not a sentence: {str(error)[:2000]!r}"
    except BaseException as error:
        return f"not a ConfigError: {type(error).__name__}: {str(error)[:500]}"


def explained(config: dict[str, Any]) -> str:
    """What can be read can be explained."""
    try:
        plan = from_config(config)
        return "read" if repr(plan) and diagnose(plan).to_dict() else "no explanation"
    except ConfigError:
        return "refused"
    except BaseException as error:
        return f"cannot be explained: {type(error).__name__}: {str(error)[:500]}"


def fuzz(count: int, seed: int) -> dict[str, Any]:
    rng, known = random.Random(seed), seeds()
    from_config(known[0])  # whatever is imported on first use is no allocation of a config's
    found: dict[str, Any] = {"read": 0, "refused": 0, "slowest_ms": 0.0, "slowest": -1}
    with little_memory():
        for number in range(count):
            config = mutate(rng.choice(known), rng)
            started = time.process_time()  # a busy machine slows the clock on the wall
            result = verdict(config)
            milliseconds = (time.process_time() - started) * 1e3
            if result == "read" and number % 5 == 0:
                result = explained(config)
            if result not in ("read", "refused"):
                found["wrong"] = f"mutation {number} of seed {seed}: {result}"
                return found
            found[result] += 1
            if milliseconds > found["slowest_ms"]:
                found |= {"slowest_ms": milliseconds, "slowest": number}
    return found


def fuzz_apart(count: int, seed: int) -> dict[str, Any]:
    """In a process of its own, where no thread or compiler of another test reserves addresses meanwhile."""
    done = subprocess.run(
        [sys.executable, __file__, str(count), str(seed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_2000_mutated_configs_are_read_or_refused_in_one_sentence():
    found = fuzz_apart(2000, seed=0)
    assert found.get("wrong") is None
    assert min(found["read"], found["refused"]) > 200


@pytest.mark.slow
def test_20000_mutated_configs_are_read_or_refused_in_one_sentence(record_property):
    found = fuzz_apart(20_000, seed=1)
    for name, value in found.items():
        record_property(name, value)
    print(found)  # noqa: T201  the slowest one's time, for whoever asks with -s
    assert found.get("wrong") is None
    assert min(found["read"], found["refused"]) > 2000


def test_most_seeds_themselves_are_read():
    results = [verdict(config) for config in seeds()]
    assert set(results) == {"read", "refused"}
    assert results.count("read") > 0.7 * len(results)


if __name__ == "__main__":
    print(json.dumps(fuzz(*map(int, sys.argv[1:]))))  # noqa: T201
