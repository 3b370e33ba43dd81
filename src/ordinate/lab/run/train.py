"""One run, from its config to its records: training, then testing at every length."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...checks import refused
from ...text import Text
from ..config import RunConfig
from ..record_checks import check_environments
from ..records import (
    Metric,
    MetricsFile,
    MetricsPrefix,
    read_json,
    read_prefix,
    read_run,
    remove_run,
    sha256_of,
    write_json,
)
from ..tasks import IGNORED
from . import checkpoint
from .build import learning_rate, make_encoding, make_model, make_optimizer, make_task
from .cost import added_cost, parameters_of, training_memory
from .environment import describe
from .evaluate import evaluate, validation_loss, windowed_losses
from .model import token_losses
from .processes import Processes
from .progress import Progress
from .run_lock import lock_run
from .stopping import stop_requests

#: Called with every line of the metrics; for a resumed run, first with the earlier lines.
Observer = Callable[[Metric], None]

# Losses are read from the device once in this many steps, because reading makes the device wait.
_STEPS_A_READING = 10

# An interruption loses at most this many seconds of work, plus a step.
_SECONDS_A_CHECKPOINT = 60.0


def no_observers(directory: Path) -> Iterable[Observer]:
    """No observers."""
    return ()


def train_and_evaluate(
    config: RunConfig,
    directory: Path,
    progress: Progress | None = None,
    *,
    observers: Iterable[Observer] = (),
    processes: Processes | None = None,
) -> None:
    """Do one run and write its records into a directory; waits for another process that does this run.

    A run that is over is not repeated. An interrupted run continues from its last checkpoint and gives the same
    numbers as without the interruption; a damaged run is named and starts again. A run that diverges is over too, with
    the reason in its records. A compiled run resets torch.compile for this process.

    After SIGINT (Ctrl-C) or SIGTERM the run saves a checkpoint before KeyboardInterrupt is raised.

    Args:
        processes: The processes that train this model together, if there are several.
    """
    progress, processes = progress or Progress(), processes or Processes()
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # cuBLAS is deterministic only with this setting
    with lock_run(directory) if processes.main else contextlib.nullcontext():
        if processes.broadcast(processes.main and read_run(directory, config).over):
            return
        config.check_format()
        with _threads(config.threads):
            state = _prepare(config, directory, progress, processes) if processes.main else None
            run = _Run(config, directory, progress, processes, observers, processes.broadcast(state))
            with contextlib.closing(run):
                try:
                    run.train()
                except Diverged as diverged:
                    run.finish("diverged", str(diverged))
                else:
                    run.evaluate()
                    run.finish("finished")
        processes.broadcast(None)  # no process starts the next run before this run is on disk


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Set the number of threads within the block, because sums over threads depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _prepare(
    config: RunConfig, directory: Path, progress: Progress, processes: Processes
) -> checkpoint.State | None:
    """Prepare the directory, and return the state of an interrupted run."""
    try:
        state, machines = _interrupted(config, directory)
    except ValueError as damage:
        progress.say(f"{directory.name} is damaged and is run again: {damage}")
        remove_run(directory)
        state, machines = None, []
    for unfinished in directory.glob(".*-*"):  # temporary files of a process that was killed
        unfinished.unlink()
    directory.mkdir(parents=True, exist_ok=True)
    here = describe(config.device, processes.size)
    if not machines or {**machines[-1], **here} != machines[-1]:
        machines = [*machines, {"from_step": state.step if state else 0, **here}]
        write_json(directory / "environment.json", machines)
    if state is None:
        write_json(directory / "config.json", config.to_dict())
    return state


def _interrupted(
    config: RunConfig, directory: Path
) -> tuple[checkpoint.State | None, list[dict[str, Any]]]:
    """The last checkpoint of an interrupted run, if it saved one, and the machines that it ran on.

    Raises:
        ValueError: The run's records are damaged.
    """
    record = read_run(directory, config)
    if record.state == "damaged":
        raise refused("", "{reason}", reason=record.reason)
    path = directory / "checkpoint.safetensors"
    if not path.exists():
        return None, []
    state = checkpoint.load(path)
    if not config == state.config == RunConfig.from_dict(read_json(directory / "config.json")):
        raise refused(Text("checkpoint.safetensors or config.json"), "is of another run")
    read_prefix(directory / "metrics.jsonl", state.prefix)
    machines = read_json(directory / "environment.json")
    check_environments(machines)
    return state, machines


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
        self.step, self.seconds, prefix = 0, 0.0, MetricsPrefix()
        if state is not None:
            checkpoint.restore(state, self.model, self.optimizer)
            self.step, self.seconds, prefix = state.step, state.seconds, state.prefix
        if processes.main:
            self.metrics = MetricsFile(directory / "metrics.jsonl", prefix)

    def close(self) -> None:
        if self.processes.main:
            self.metrics.close()

    # training

    def train(self) -> None:
        config = self.config
        for metric in self.metrics.metrics if self.processes.main else ():
            self._observe(metric)
        trained = self.processes.synchronised(self.model)
        if config.compile:
            torch.compiler.reset()  # drops graphs of earlier encodings: torch.compile limits the graphs per function
            trained = torch.compile(trained)  # type: ignore[assignment]
        if config.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.progress.begin(self.directory.name, "training", config.steps, self.step)
        with stop_requests() as stop_requested:
            self._train(trained, stop_requested)
        self.progress.end()

    def _train(self, trained: nn.Module, stop_requested: Callable[[], bool]) -> None:
        """Train to the last step, or to a checkpoint after a request to stop."""
        config, alone = self.config, self.processes.size == 1
        pending: list[tuple[int, Tensor, Tensor]] = []
        stops = False
        started = saved = time.perf_counter()
        while self.step < config.steps and not stops:
            loss, norm = self._step(trained)
            self.step += 1
            pending.append((self.step, loss, norm))
            last = self.step == config.steps
            validates = self.step % config.validate_every == 0 or last
            saves = self.step % config.checkpoint_every == 0 or last
            if alone:  # several processes decide together, when they read losses
                saves |= stop_requested() or time.perf_counter() - saved > _SECONDS_A_CHECKPOINT
            if not (validates or saves or len(pending) == _STEPS_A_READING):
                continue
            numbers = [(at, float(loss), float(norm)) for at, loss, norm in pending]  # waits for the GPU
            self.seconds += time.perf_counter() - started
            self._record(numbers)
            pending.clear()
            if validates:
                self._validate()
            stops = self.processes.any(stop_requested())
            saves |= stops or time.perf_counter() - saved > _SECONDS_A_CHECKPOINT
            if self.processes.main:
                if last:  # before evaluation changes the device's peak memory
                    self._append(kind="cost", **self._cost())
                if saves:
                    self._save()
            if saves:
                saved = time.perf_counter()
            started = time.perf_counter()

    def _step(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns the loss over the full batch and the norm of the gradient."""
        config = self.config
        batch = self.task.training_batch(config.seed, self.step, config.batch, config.train_length)
        count = (batch.targets != IGNORED).sum()
        tokens, targets = (self.processes.own_rows(part).to(config.device) for part in batch)
        rate = learning_rate(config, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        with torch.autocast(config.device, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            logits = model(tokens)
        # Gradients are averaged over processes, but must be their sum.
        loss = token_losses(logits, targets).sum() / count.item()
        (loss * self.processes.size).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.processes.sum_over_processes(loss.detach()), norm

    def _record(self, numbers: list[tuple[int, float, float]]) -> None:
        config = self.config
        for step, loss, norm in numbers:
            _check_finite(step, "loss", loss)
            _check_finite(step, "gradient norm", norm)
            if self.processes.main:
                self._append(
                    kind="train", step=step, loss=loss, grad_norm=norm,
                    learning_rate=learning_rate(config, step - 1),
                    tokens=step * config.batch * config.train_length, seconds=self.seconds,
                )  # fmt: skip
        speed = self.step * config.batch * config.train_length / self.seconds
        self.progress.update(self.step, f"loss {numbers[-1][1]:.3f}, {speed:,.0f} tokens/s")

    def _validate(self) -> None:
        """The main process computes the loss and broadcasts it, so that all continue or diverge together."""
        main = self.processes.main
        loss = self.processes.broadcast(
            validation_loss(self.model, self.task, self.config) if main else None
        )
        _check_finite(self.step, "validation loss", loss)
        if main:
            self._append(kind="validation", step=self.step, loss=loss)

    def _save(self) -> None:
        prefix = self.metrics.prefix()  # first, because the lines before a checkpoint must be on disk
        tensors = checkpoint.capture(self.model, self.optimizer)
        state = checkpoint.State(self.config, self.step, self.seconds, prefix, tensors)
        checkpoint.save(state, self.directory / "checkpoint.safetensors")

    # testing

    def evaluate(self) -> None:
        if not self.processes.main:
            return
        config, wanted = self.config, self.config.tests()
        tests = self.task.test_sequences(config, config.train_length)
        self._append(kind="baseline", **self.task.baseline(tests)._asdict())
        plain = self.model.encoding
        control = None
        if config.control:
            control = windowed_losses(self.model, self.task, config, self._report_control)
        self.progress.begin(self.directory.name, "testing", len(wanted))
        for count, (scaling, length) in enumerate(wanted, 1):
            if scaling is not None:
                self.model.encoding = make_encoding(f"{config.spec}+{scaling}", config).to(config.device)
            measured = evaluate(self.model, self.task, config, length, control)
            self._append(kind="evaluation", extension=scaling, **measured)
            self.model.encoding = plain
            self.progress.update(count, _brief(length, measured))
        self.progress.end()

    def _report_control(self, done: int, total: int) -> None:
        if done == 0:
            self.progress.begin(self.directory.name, "control", total)
        self.progress.update(done)
        if done == total:
            self.progress.end()

    def _cost(self) -> dict[str, Any]:
        config = self.config
        if config.device == "cuda":
            memory = torch.cuda.max_memory_allocated()
        else:
            batch = self.task.training_batch(config.seed, 0, config.batch, config.train_length)
            memory = training_memory(self.model, *(part.to(config.device) for part in batch))
        operations, moved = added_cost(make_encoding(config.spec, config), config)
        return {
            "parameters": parameters_of(self.model),
            "encoding_parameters": parameters_of(self.model.encoding),
            "tokens_per_second": self._tokens_per_second(), "peak_memory_bytes": memory,
            "operations": operations, "bytes": moved,
        }  # fmt: skip

    def _tokens_per_second(self) -> float:
        """The median over readings, which neither compilation, which takes a minute, nor an interruption changes."""
        readings = {line["seconds"]: line["tokens"] for line in self.metrics.of_kind("train")}
        times, tokens = [0.0, *readings], [0, *readings.values()]
        return statistics.median(
            (tokens[i + 1] - tokens[i]) / (times[i + 1] - times[i]) for i in range(len(times) - 1)
        )

    def finish(self, state: str, reason: str = "") -> None:
        """Write the result, after which the run is over."""
        if not self.processes.main:
            return
        name, directory = self.directory.name, self.directory
        # The digest of the lines that were written, even if another program has changed the file since.
        digests = {"metrics.jsonl": self.metrics.prefix().sha256}
        if state == "finished":
            weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
            checkpoint.save_tensors(weights, directory / "model.safetensors")
            digests["model.safetensors"] = sha256_of(directory / "model.safetensors")
        else:
            self.progress.say(f"{name} diverged: {reason}")
        for file in ("config.json", "environment.json"):
            digests[file] = sha256_of(directory / file)
        trained = self.metrics.of_kind("train")
        tests = [line for line in self.metrics.of_kind("evaluation") if line["extension"] is None]
        write_json(
            directory / "result.json",
            {
                "state": state,
                "reason": reason,
                "sha256": digests,
                "steps": len(trained),
                "seconds": self.seconds,
                "final_loss": trained[-1]["loss"] if trained else None,
                "loss": {str(line["length"]): line["loss"] for line in tests},
                "accuracy": {str(line["length"]): line["accuracy"] for line in tests},
                "refused": {str(line["length"]): line["refused"] for line in tests if line["refused"]},
            },
        )
        (directory / "checkpoint.safetensors").unlink(missing_ok=True)
        record = read_run(directory, self.config)
        if not record.over:  # another program, or a disk error, has changed a file
            self.progress.say(f"{name} is damaged and does not count: {record.reason}")

    def _append(self, **metric: Any) -> None:
        self.metrics.append(**metric)
        self._observe(metric)

    def _observe(self, metric: Metric) -> None:
        for observer in self.observers:
            observer(metric)


class Diverged(ArithmeticError):
    """Training reached NaN or infinity."""


def _check_finite(step: int, what: str, value: float) -> None:
    if not math.isfinite(value):
        raise refused(
            "",
            "at step {step} its {what} is {found}",
            error=Diverged,
            step=step,
            what=Text(what),
            found=value,
        )


def _brief(length: int, measured: dict[str, Any]) -> str:
    if measured["refused"]:
        return f"refused at {length}"
    if measured["accuracy"] is not None:
        return f"{measured['accuracy']:.0%} right at {length}"
    return f"loss {measured['loss']:.3f} at {length}"
