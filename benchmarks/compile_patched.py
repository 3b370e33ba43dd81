"""How long `torch.compile` takes for models as transformers has them and patched by ordinate, and how many graphs.

    PYTHONPATH=src python3 benchmarks/compile_patched.py --out DIR [--only NAME …] [--rounds N] [--smoke]

Forward and backward of models with random weights and four layers, in bfloat16 on one CUDA device (float32 on the
CPU), batch 1. Each number is of a process of its own with empty caches of compiled code; the two take turns.
``--smoke``: tiny models and a backend that generates no code.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = 20
MODELS = ("Llama", "gpt-oss", "T5", "BLOOM")


def build(name: str, tiny: bool) -> Any:
    import transformers

    width, heads, vocabulary = (64, 4, 97) if tiny else (1024, 16, 32000)
    sizes = {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": 4, "num_attention_heads": heads,
        "num_key_value_heads": heads // 2, "intermediate_size": 2 * width, "head_dim": width // heads,
    }  # fmt: skip
    match name:
        case "Llama":
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
        case "gpt-oss":
            experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128}
            return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, **experts))
        case "T5":
            t5 = {"d_model": width, "d_kv": width // heads, "d_ff": 2 * width, "num_layers": 4}
            config = transformers.T5Config(
                **t5, num_heads=heads, vocab_size=vocabulary, dropout_rate=0.0
            )
            return transformers.T5EncoderModel(config)
        case "BLOOM":
            bloom = {"vocab_size": vocabulary, "hidden_size": width, "n_layer": 4, "n_head": heads}
            return transformers.BloomForCausalLM(transformers.BloomConfig(**bloom, use_cache=False))
    raise ValueError(f"name must be one of {MODELS}, got {name!r}")


def measure(name: str, patched: bool, tiny: bool) -> dict[str, Any]:
    """Graphs, the first call with its compilation, and calls after that; in this process."""
    import torch

    from ordinate.hf import patch

    device = torch.device("cuda" if torch.cuda.is_available() and not tiny else "cpu")
    torch.manual_seed(0)
    model = (
        build(name, tiny).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).train()
    )
    if patched:
        patch(model)
    given = {"input_ids": torch.randint(3, 90, (1, 64 if tiny else 2048), device=device)}
    given |= {} if name in ("T5", "BLOOM") else {"use_cache": False}
    step = torch.compile(model, backend="aot_eager" if tiny else "inductor", fullgraph=name != "gpt-oss")

    def run() -> float:
        start = time.perf_counter()
        model.zero_grad(set_to_none=True)
        found = step(**given)
        getattr(
            found, "logits", getattr(found, "last_hidden_state", None)
        ).float().square().mean().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    first = run()
    times = [run() for _ in range(2 if tiny else STEPS)]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"graphs": graphs, "first_call_s": first, "step_ms": statistics.median(times) * 1e3}


def in_a_process(name: str, patched: bool, tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:
        caches = {
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": empty,
            "TRITON_CACHE_DIR": empty,
        }
        command = [sys.executable, __file__, "--one", name, *(["--patched"] if patched else [])]
        command += ["--smoke"] if tiny else []
        found = subprocess.run(
            command, env=os.environ | caches, capture_output=True, text=True, check=False
        )
    if found.returncode:
        return {"error": found.stderr.strip().splitlines()[-1][:300]}
    return json.loads(found.stdout.splitlines()[-1])


def row(name: str, tiny: bool, rounds: int) -> dict[str, Any]:
    taken: dict[str, list[dict[str, Any]]] = {"transformers": [], "ordinate": []}
    for _ in range(rounds):
        for by, found in taken.items():
            found.append(in_a_process(name, by == "ordinate", tiny))
    made: dict[str, Any] = {"model": name}
    for by, found in taken.items():
        errors = [one["error"] for one in found if "error" in one]
        made[by] = {"error": errors[0]} if errors else {
            key: round(statistics.median(one[key] for one in found), 3) for key in found[0]
        }  # fmt: skip
    if not any("error" in made[by] for by in taken):
        made["first_call_ratio"] = round(
            made["ordinate"]["first_call_s"] / made["transformers"]["first_call_s"], 3
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=MODELS)
    parser.add_argument(
        "--rounds", type=int, default=3, help="processes each, of which the median counts"
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--one", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--patched", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.patched, asked.smoke)))
        return
    if asked.out is None:
        parser.error("--out must name a folder, got nothing")
    import transformers

    from environment import describe

    record: dict[str, Any] = {
        "environment": describe() | {"transformers": transformers.__version__},
        "rows": [],
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.only:
        record["rows"].append(row(name, asked.smoke, asked.rounds))
        print(json.dumps(record["rows"][-1]), flush=True)
        (asked.out / "compile_patched.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
