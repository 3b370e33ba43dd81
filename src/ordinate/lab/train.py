"""One run, from its config to its records: training, then testing at every length."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..catalog import create
from ..rotate.rope import RoPE
from . import checkpoint
from .config import RunConfig
from .corpus import load_corpus
from .cost import added_cost, parameters_of, training_memory
from .environment import describe
from .evaluate import evaluate, validation_loss
from .model import Transformer, token_losses
from .processes import Processes
from .progress import Progress
from .records import Metric, MetricsFile, read_json, read_run, write_json
from .tasks import TASKS, UNASKED, Language, Task

#: Called with every line of the metrics, those of an interrupted run first.
Observer = Callable[[Metric], None]

# Losses are read from the device this many steps at a time: waiting for each one would idle it.
_STEPS_A_READING = 10


def train_and_evaluate(
    config: RunConfig,
    directory: Path,
    progress: Progress | None = None,
    *,
    observers: Iterable[Observer] = (),
    processes: Processes | None = None,
) -> None:
    """Do one run and leave its records in a directory.

    A finished run is not repeated. An interrupted one goes on from its last checkpoint and ends with the
    numbers it would have had; a damaged one is named and starts again.

    Args:
        processes: Those that train this model together, when there are several.
    """
    progress, processes = progress or Progress(), processes or Processes()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with this
    finished = processes.main and read_run(directory, config).state == "finished"
    if processes.share(finished):
        return
    state = processes.share(_prepare(config, directory, progress) if processes.main else None)
    with _Run(config, directory, progress, processes, observers, state) as run:
        run.train()
        if processes.main:
            run.evaluate()
            run.finish()
    processes.share(None)  # nobody starts the next run before this one is on disk


def make_task(config: RunConfig) -> Task:
    """The task of a run; a text must still be the one its config was made for.

    Raises:
        ValueError: The text has changed since.
    """
    if config.task != "language":
        return TASKS[config.task]()
    corpus = load_corpus(config.text)
    if config.corpus and corpus.fingerprint != config.corpus:
        raise ValueError(
            f"text must be what the comparison began with, of fingerprint {config.corpus}, "
            f"got {corpus.source} of {corpus.fingerprint}"
        )
    return Language(corpus)


def make_model(config: RunConfig) -> Transformer:
    """An untrained model. Of one seed, all encodings start from the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)  # a learned encoding's own beginning
        encoding = make_encoding(config.spec, config)
        torch.manual_seed(config.seed)
        return Transformer(
            encoding,
            d_model=config.d_model,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
        )


def make_encoding(spec: str, config: RunConfig):
    """The encoding of a spec with the sizes of a run; its positions end where training ends."""
    return create(
        spec, d_model=config.d_model, num_heads=config.num_heads, max_positions=config.train_length
    )


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW; matrices decay, gains and the encoding's own parameters do not."""
    groups: dict[str, list[nn.Parameter]] = {"matrices": [], "gains": [], "encoding": []}
    for name, parameter in model.named_parameters():
        kind = (
            "encoding"
            if name.startswith("encoding.")
            else "matrices"
            if parameter.dim() > 1
            else "gains"
        )
        groups[kind].append(parameter)
    settings = {
        "matrices": {"weight_decay": config.weight_decay, "factor": 1.0},
        "gains": {"weight_decay": 0.0, "factor": 1.0},
        "encoding": {"weight_decay": 0.0, "factor": config.encoding_rate},
    }
    listed = [{"params": members, **settings[kind]} for kind, members in groups.items() if members]
    return torch.optim.AdamW(listed, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(config: RunConfig, step: int) -> float:
    """A straight line up to the full rate, then a cosine down to a tenth of it."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def _prepare(config: RunConfig, directory: Path, progress: Progress) -> checkpoint.State | None:
    """Make the directory ready and return where an interrupted run stopped."""
    state, damage = _interrupted(config, directory)
    if damage:
        progress.say(f"{directory.name} is damaged and is run again: {damage}")
        shutil.rmtree(directory)
    for unfinished in directory.glob(".*-*"):  # files a killed process was about to put in place
        unfinished.unlink()
    if state is None:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "environment.json", describe(config.device))
        write_json(directory / "config.json", config.to_dict())
    return state


def _interrupted(config: RunConfig, directory: Path) -> tuple[checkpoint.State | None, str]:
    """The last state of a run that stopped, if it left one, and what is wrong with its records, if anything."""
    record = read_run(directory, config)
    if record.state == "damaged":
        return None, record.reason
    if not (directory / "config.json").exists():
        return None, ""
    try:
        if RunConfig.from_dict(read_json(directory / "config.json")) != config:
            return None, "config.json is of another run"
        # A sum over threads depends on their number: go on with as many as before.
        threads = int(read_json(directory / "environment.json")["threads"])
        state = checkpoint.load(directory / "checkpoint.safetensors")
    except (ValueError, KeyError, TypeError, OSError) as error:
        return None, f"{type(error).__name__}: {error}"
    torch.set_num_threads(threads)
    return state, ""


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        progress: Progress,
        processes: Processes,
        observers: Iterable[Observer],
        state: checkpoint.State | None,
    ) -> None:
        self.config, self.directory = config, directory
        self.progress, self.processes, self.observers = progress, processes, tuple(observers)
        self.task = make_task(config)
        if config.device == "cuda":
            torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.model = make_model(config).to(config.device)
        self.optimizer = make_optimizer(self.model, config)
        self.step, self.seconds = 0, 0.0
        if state is not None:
            checkpoint.restore(state, self.model, self.optimizer)
            self.step, self.seconds = state.step, state.seconds

    def __enter__(self) -> _Run:
        if self.processes.main:
            # Lines without a step come at the end, and stand only if the last checkpoint does.
            trained = self.step == self.config.steps
            self.metrics = MetricsFile(
                self.directory / "metrics.jsonl",
                keep=lambda metric: trained if "step" not in metric else metric["step"] <= self.step,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.processes.main:
            self.metrics.close()

    # training

    def train(self) -> None:
        config = self.config
        for metric in self.metrics.metrics if self.processes.main else ():
            self._observe(metric)
        trained = self.processes.synchronised(self.model)
        if config.compile:
            trained = torch.compile(trained)  # type: ignore[assignment]
        if config.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.progress.begin(self.directory.name, "training", config.steps, self.step)
        pending: list[tuple[int, Tensor, Tensor]] = []
        started = time.perf_counter()
        while self.step < config.steps:
            loss, norm = self._step(trained)
            self.step += 1
            pending.append((self.step, loss, norm))
            validates = self.step % config.validate_every == 0 or self.step == config.steps
            saves = self.step % config.checkpoint_every == 0 or self.step == config.steps
            if not (validates or saves or len(pending) == _STEPS_A_READING):
                continue
            numbers = [
                (at, float(loss), float(norm)) for at, loss, norm in pending
            ]  # waits for the device
            self.seconds += time.perf_counter() - started
            self._record(numbers)
            pending.clear()
            if self.processes.main:
                if validates:
                    loss_now = validation_loss(self.model, self.task, config)
                    self._append(kind="validation", step=self.step, loss=loss_now)
                if self.step == config.steps:  # while the device still remembers its fullest moment
                    self._append(kind="cost", **self._cost())
                if saves:
                    self._save()
            started = time.perf_counter()
        self.progress.end()

    def _step(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """One step of the optimizer; its loss over the whole batch and the length of its gradient."""
        config = self.config
        batch = self.task.training_batch(config.seed, self.step, config.batch, config.train_length)
        asked = (batch.targets != UNASKED).sum()
        tokens, targets = (self.processes.part(part).to(config.device) for part in batch)
        rate = learning_rate(config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        with torch.autocast(config.device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            logits = model(tokens)
        # Processes average their gradients, so each counts its share as many times as they are.
        loss = token_losses(logits, targets).sum() / asked.item()
        (loss * self.processes.size).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.processes.total(loss.detach()), norm

    def _record(self, numbers: list[tuple[int, float, float]]) -> None:
        config = self.config
        for step, loss, norm in numbers:
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise Diverged(f"{self.directory.name} diverged at step {step}: its loss is {loss}")
            if self.processes.main:
                self._append(
                    kind="train", step=step, loss=loss, grad_norm=norm,
                    learning_rate=learning_rate(config, step - 1),
                    tokens=step * config.batch * config.train_length, seconds=self.seconds,
                )  # fmt: skip
        speed = self.step * config.batch * config.train_length / self.seconds
        self.progress.update(self.step, f"loss {numbers[-1][1]:.3f}, {speed:,.0f} tokens/s")

    def _save(self) -> None:
        self.metrics.sync()  # first: a checkpoint stands for all lines up to its step
        state = checkpoint.capture(self.model, self.optimizer, self.step, self.seconds)
        checkpoint.save(state, self.directory / "checkpoint.safetensors")

    # testing

    def evaluate(self) -> None:
        config = self.config
        wanted: list[tuple[str | None, int]] = [(None, length) for length in config.lengths]
        if isinstance(self.model.encoding, RoPE) and self.model.encoding.scaling is None:
            wanted += [(scaling, length) for scaling in config.extensions for length in config.lengths]
        done = {(line["extension"], line["length"]) for line in self.metrics.of_kind("evaluation")}
        if not self.metrics.of_kind("baseline"):
            name, loss = self._baseline()
            self._append(kind="baseline", name=name, loss=loss)
        self.progress.begin(self.directory.name, "testing", len(wanted), len(done))
        plain = self.model.encoding
        for count, (scaling, length) in enumerate(wanted, 1):
            if (scaling, length) in done:
                continue
            if scaling is not None:
                self.model.encoding = make_encoding(f"{config.spec}+{scaling}", config).to(config.device)
            measured = evaluate(self.model, self.task, config, length, windowed=scaling is None)
            self._append(kind="evaluation", extension=scaling, **measured)
            self.model.encoding = plain
            self.progress.update(count, _brief(length, measured))
        self.progress.end()

    def _cost(self) -> dict[str, Any]:
        config = self.config
        if config.device == "cuda":
            memory = torch.cuda.max_memory_allocated()
        else:
            batch = self.task.training_batch(config.seed, 0, config.batch, config.train_length)
            memory = training_memory(self.model, *batch)
        operations, moved = added_cost(make_encoding(config.spec, config), config)
        return {
            "parameters": parameters_of(self.model),
            "encoding_parameters": parameters_of(self.model.encoding),
            "tokens_per_second": self._tokens_per_second(),
            "peak_memory_bytes": memory,
            "operations": operations,
            "bytes": moved,
        }

    def _tokens_per_second(self) -> float:
        """The median over readings, which neither a compiler's minute nor an interruption moves."""
        readings = {line["seconds"]: line["tokens"] for line in self.metrics.of_kind("train")}
        times, tokens = [0.0, *readings], [0, *readings.values()]
        return statistics.median(
            (tokens[i + 1] - tokens[i]) / (times[i + 1] - times[i]) for i in range(len(times) - 1)
        )

    def _baseline(self) -> tuple[str, float]:
        config = self.config
        length, longest = config.train_length, max(config.lengths)
        return self.task.baseline(self.task.test_sequences(config.evaluation_tokens, length, longest))

    def finish(self) -> None:
        tests = [line for line in self.metrics.of_kind("evaluation") if line["extension"] is None]
        digest = self.metrics.digest()
        weights = checkpoint.State(
            self.step, self.seconds, {name: p.detach() for name, p in self.model.named_parameters()}
        )
        checkpoint.save(weights, self.directory / "model.safetensors")
        write_json(
            self.directory / "result.json",
            {
                "metrics_sha256": digest,
                "steps": self.step,
                "seconds": self.seconds,
                "final_loss": self.metrics.of_kind("train")[-1]["loss"],
                "loss": {str(line["length"]): line["loss"] for line in tests},
                "accuracy": {str(line["length"]): line["accuracy"] for line in tests},
                "refused": {str(line["length"]): line["refused"] for line in tests if line["refused"]},
            },
        )
        (self.directory / "checkpoint.safetensors").unlink(missing_ok=True)

    def _append(self, **metric: Any) -> None:
        self.metrics.append(**metric)
        self._observe(metric)

    def _observe(self, metric: Metric) -> None:
        for observer in self.observers:
            observer(metric)


class Diverged(ArithmeticError):
    """Training reached a loss that is no number; nothing after it would mean anything."""


def _brief(length: int, measured: dict[str, Any]) -> str:
    if measured["refused"]:
        return f"refused at {length}"
    if measured["accuracy"] is not None:
        return f"{measured['accuracy']:.0%} right at {length}"
    return f"loss {measured['loss']:.3f} at {length}"
