"""Many runs through Ray: every result arrives, none twice, and a lost worker's run goes on where it was."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab_cases import numbers, users_environment

from ordinate.lab.config import RunConfig
from ordinate.lab.records import Sweep, read_run, read_runs, sha256_of
from ordinate.lab.run import checkpoint, cluster
from ordinate.lab.run.cluster import ClusterError, Job, run_on_cluster
from ordinate.lab.run.failures import RunFailed
from ordinate.lab.run.progress import Progress
from ordinate.lab.run.run_lock import last_host, lock_file, lock_run
from ordinate.lab.run.train import train_and_evaluate

TINY = RunConfig(
    "rope", task="copy", train_length=16, lengths=(16, 32), steps=20, batch=4, d_model=16, num_layers=1,
    num_heads=2, warmup=2, evaluation_tokens=512, last_tokens=4, validate_every=10, checkpoint_every=10,
)  # fmt: skip


def sweep_of(arms=("rope", "alibi"), seeds=(0, 1), **changes) -> Sweep:
    return Sweep(tuple(arms), tuple(seeds), replace(TINY, **changes).settings(), "ordinate compare", "0")


class Noted(Progress):
    """Keeps what a person would have read."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.done = 0

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def run_done(self) -> None:
        self.done += 1


@pytest.fixture(scope="module")
def two_workers():
    """A cluster on this machine, of two workers."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    interpreted = os.environ.pop("TRITON_INTERPRET", None)  # workers are to choose as users' do
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    if interpreted is not None:
        os.environ["TRITON_INTERPRET"] = interpreted
    yield ray
    ray.shutdown()


def finished(sweep: Sweep, out: Path) -> dict[str, str]:
    return {
        sweep.directory(out, config).name: read_run(sweep.directory(out, config), config).state
        for config in sweep.configs()
    }


# Locks


def test_a_lock_keeps_others_waiting_until_it_ends(tmp_path):
    order = []

    def second():
        with lock_run(tmp_path / "run", poll=0.01):
            order.append("second")

    with lock_run(tmp_path / "run"):
        other = threading.Thread(target=second)
        other.start()
        time.sleep(0.2)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_a_lock_says_whose_it_is_and_ends_with_its_process(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from ordinate.lab.run.run_lock import lock_run\n"
        "with lock_run(Path(sys.argv[1])): print('mine', flush=True); time.sleep(60)"
    )
    run = tmp_path / "runs" / "rope-0"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "mine\n"
        assert lock_file(run).read_text() == f"{holder.pid} on {socket.gethostname()}\n"
        holder.kill()
    with lock_run(run, poll=0.01):
        assert lock_file(run).read_text() == f"{os.getpid()} on {socket.gethostname()}\n"
        assert last_host(run) == socket.gethostname()
    assert last_host(run) == ""


def test_a_lock_leaves_nothing_behind_however_its_holder_leaves(tmp_path):
    with pytest.raises(RuntimeError, match="no room"), lock_run(tmp_path / "run"):
        raise RuntimeError("no room")
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_wait_and_come_only_one_at_a_time_has_the_lock(tmp_path):
    """Lock files are removed while others wait for them: a lock on a removed file must exclude nobody."""
    holders, most = [], []

    def hold():
        for _ in range(20):
            with lock_run(tmp_path / "run", poll=0.0005):
                holders.append(1)
                most.append(len(holders))
                time.sleep(0.0005)
                holders.pop()

    threads = [threading.Thread(target=hold) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 120
    assert max(most) == 1
    assert list(tmp_path.iterdir()) == []


# The worker's side, in this process


def job_of(sweep: Sweep, folder: Path, **changes) -> Job:
    sweep.save(folder)
    config = sweep.configs()[0]
    digest = sha256_of(folder / "sweep.json")
    job = Job(config, folder, sweep.directory(folder, config), digest, cluster.ordinate.__version__)
    return replace(job, **changes)


def work(job: Job):
    return cluster._work(job, lambda directory: ())


def test_a_worker_without_the_shared_folder_refuses_before_it_writes_anything(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    job = job_of(sweep_of(), tmp_path / "out", out=tmp_path / "elsewhere")
    with pytest.raises(
        ClusterError, match=r"out must be on storage that all machines share, got .*elsewhere"
    ):
        work(job)
    job = job_of(sweep_of(), tmp_path / "out", sweep_sha256="of another folder by that name")
    with pytest.raises(ClusterError, match="which a worker sees differently"):
        work(job)
    assert not (tmp_path / "out/runs").exists()


def test_a_worker_of_another_version_refuses(tmp_path):
    with pytest.raises(ClusterError, match=r"every machine must have ordinate 9\.9, got one with "):
        work(job_of(sweep_of(), tmp_path, version="9.9"))


def test_a_run_that_another_finished_meanwhile_is_left_as_it_is(tmp_path):
    job = job_of(sweep_of(), tmp_path)
    work(job)
    before = {path: path.stat().st_mtime_ns for path in job.directory.iterdir()}
    work(job)
    assert {path: path.stat().st_mtime_ns for path in job.directory.iterdir()} == before
    assert not lock_file(job.directory).exists()


def test_without_ray_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ClusterError,
        match=re.escape("needs ray, not installed here: pip install 'ordinate[cluster]'"),
    ):
        run_on_cluster(sweep_of(), tmp_path)
    assert list(tmp_path.iterdir()) == []


# A cluster


@pytest.mark.slow
def test_every_run_arrives_once_and_finished_ones_are_not_sent_again(two_workers, tmp_path):
    sweep, progress = sweep_of(), Noted()
    sent = run_on_cluster(sweep, tmp_path, "auto", progress)
    assert sent == {"rope-0": 1, "alibi-0": 1, "rope-1": 1, "alibi-1": 1}
    assert set(finished(sweep, tmp_path).values()) == {"finished"}
    assert progress.done == 4
    assert list((tmp_path / "runs").glob(".*.lock")) == []
    assert run_on_cluster(sweep, tmp_path) == dict.fromkeys(sent, 0)


@pytest.mark.slow
def test_a_killed_workers_run_goes_on_from_its_checkpoint_to_the_same_numbers(two_workers, tmp_path):
    sweep, out, progress = sweep_of(steps=600, checkpoint_every=20), tmp_path / "out", Noted()
    victim = out / "runs" / "rope-0"
    killed: list[int] = []

    def kill_mid_run() -> None:
        limit = time.monotonic() + 120
        while time.monotonic() < limit and not killed:
            # The first checkpoint is there and the run is far from done: its worker dies now.
            if (victim / "checkpoint.safetensors").exists():
                os.kill(int(lock_file(victim).read_text().split()[0]), signal.SIGKILL)
                # Written when a run starts from nothing, and so by the first worker alone.
                killed.append((victim / "environment.json").stat().st_mtime_ns)
            time.sleep(0.005)

    killer = threading.Thread(target=kill_mid_run)
    killer.start()
    sent = run_on_cluster(sweep, out, "auto", progress)
    killer.join()
    assert killed == [(victim / "environment.json").stat().st_mtime_ns]
    assert sent == {"rope-0": 2, "alibi-0": 1, "rope-1": 1, "alibi-1": 1}
    (lost,) = (sentence for sentence in progress.sentences if "lost its worker" in sentence)
    assert re.fullmatch(
        rf"rope-0 lost its worker on {re.escape(socket.gethostname())} and goes on from the checkpoint at step \d+0 "
        rf"\(details in {re.escape(str(out))}/failures.log\)",
        lost,
    )
    assert "WorkerCrashedError" in (out / "failures.log").read_text()
    assert set(finished(sweep, out).values()) == {"finished"}
    assert progress.done == 4
    # It went on, and did not start again or do a step twice; the numbers are those of a run left alone.
    record = read_run(victim)
    assert [line["step"] for line in record.of_kind("train")] == list(range(1, 601))
    train_and_evaluate(sweep.configs()[0], tmp_path / "alone")
    alone = read_run(tmp_path / "alone")
    for kind in ("train", "validation", "evaluation"):
        assert without_time(record.of_kind(kind)) == without_time(alone.of_kind(kind))


def without_time(lines):
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster of two nodes on this machine, of one core each, whose head soon notices that one is gone."""
    ray_cluster = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    soon = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 500,
        "health_check_failure_threshold": 4,
    }
    made = ray_cluster.Cluster()
    for settings in ({"include_dashboard": False, "_system_config": soon}, {}):
        node = made.add_node(num_cpus=1, object_store_memory=80_000_000, **settings)
    yield made, node
    made.shutdown()


@pytest.mark.slow
@pytest.mark.plain
@pytest.mark.parametrize("how", ["killed", "frozen for a while", "the head is killed"])
def test_of_a_lost_node_the_user_reads_our_sentences_and_none_of_rays(two_nodes, tmp_path, how):
    made, node = two_nodes
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "ordinate", "compare", "none", "alibi", "--task", "copy", "--train-length", "16",
        "--lengths", "16,32", "--steps", "1500", "--batch", "4", "--d-model", "16", "--layers", "1", "--heads", "2",
        "--extend", "none", "--no-report",
    ]  # fmt: skip
    driver = subprocess.Popen(
        [*command, "--json", "--cluster", made.address, "--out", str(out)],
        env=users_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    directories = [out / "runs" / name for name in ("none-0", "alibi-0")]
    while any(checkpoint.step_of(directory) < 250 for directory in directories):
        assert driver.poll() is None, driver.stderr.read()
        time.sleep(0.01)
    if how == "killed":
        made.remove_node(node, allow_graceful=False)
    elif (
        how == "frozen for a while"
    ):  # as when its link is cut; when it thaws, it ends and has much to say
        raylet = node.all_processes["raylet"][0].process.pid
        os.kill(raylet, signal.SIGSTOP)
        time.sleep(8)
        os.kill(raylet, signal.SIGCONT)
    else:
        made.head_node.kill_gcs_server()
        sentence = ""
        while "the head of the cluster" not in sentence or "does not answer" not in sentence:
            sentence = driver.stderr.readline()
            assert sentence, "Ray ended the driver before it was told"
        resume = re.escape(
            f"Then ordinate compare --resume --out {out} goes on, with or without --cluster"
        )
        assert re.search(
            rf"{resume}, from these checkpoints or later ones: ((none|alibi)-0 at step \d+(, )?)+\n",
            sentence,
        )
        driver.kill()  # as Ray does after a minute
    said, told = driver.communicate(timeout=200)
    if how == "the head is killed":
        time.sleep(1)
        resumed = subprocess.run(
            [*command[:4], "--resume", "--no-report", "--workers", "1", "--out", str(out)],
            env=users_environment(),
            check=False,
        )
        assert resumed.returncode == 0
    else:
        assert driver.returncode == 0, told
        assert [arm["encoding"] for arm in json.loads(said)["encodings"]] == ["none", "alibi"]
        assert not re.search(r"raylet|gcs|Traceback|Error|core_worker|state-dump", told), told
    if how == "killed":
        where = re.escape(f"(details in {out}/failures.log)")
        host = re.escape(socket.gethostname())
        assert re.search(
            rf"^(none|alibi)-0 lost its worker on {host} and goes on from the checkpoint at step \d+ {where}$",
            told,
            re.MULTILINE,
        )
        assert "NodeDiedError" in (out / "failures.log").read_text()
    sweep, runs = read_runs(out)
    for config, run in zip(sweep.configs(), runs, strict=True):
        assert run.state == "finished"
        train_and_evaluate(config, tmp_path / "alone" / run.directory.name)
        assert numbers(run.directory) == numbers(tmp_path / "alone" / run.directory.name)


@pytest.mark.slow
def test_two_drivers_at_once_do_every_run_once(two_workers, tmp_path):
    """Both send all runs; the locks let only one of them do each."""
    sweep = sweep_of(steps=100)
    counted = tmp_path / "started"
    counted.mkdir()

    def observers(directory: Path):
        def count(metric):
            if metric["kind"] == "train" and metric["step"] == 1:
                (counted / f"{directory.name}-{os.getpid()}-{time.monotonic_ns()}").touch()

        return (count,)

    drivers = [
        threading.Thread(
            target=run_on_cluster, args=(sweep, tmp_path / "out"), kwargs={"observers": observers}
        )
        for _ in range(2)
    ]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert set(finished(sweep, tmp_path / "out").values()) == {"finished"}
    started = sorted(path.name.rsplit("-", 2)[0] for path in counted.iterdir())
    assert started == ["alibi-0", "alibi-1", "rope-0", "rope-1"]


@pytest.mark.slow
def test_a_run_at_fault_is_raised_when_the_others_are_done(two_workers, tmp_path):
    sweep, progress = sweep_of(), Noted()

    def broken(directory: Path):
        if directory.name == "alibi-0":
            raise OSError("no listener for alibi-0")
        return ()

    with pytest.raises(RunFailed, match="alibi-0 failed: no listener for alibi-0"):
        run_on_cluster(sweep, tmp_path, "auto", progress, observers=broken)
    states = finished(sweep, tmp_path)
    assert states.pop("alibi-0") != "finished"
    assert set(states.values()) == {"finished"}
    where = tmp_path / "failures.log"
    assert f"alibi-0 failed: no listener for alibi-0 (details in {where})" in progress.sentences
    assert "in broken" in where.read_text()


@pytest.mark.slow
def test_a_run_that_ends_its_worker_every_time_is_given_up_and_named(two_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "RETRIES", 1)

    def deadly(directory: Path):
        return (
            (lambda metric: os.kill(os.getpid(), signal.SIGKILL),) if directory.name == "rope-0" else ()
        )

    with pytest.raises(
        ClusterError, match="rope-0 lost its worker 2 times, the last by WorkerCrashedError"
    ):
        run_on_cluster(sweep_of(seeds=(0,)), tmp_path, observers=deadly)
    assert finished(sweep_of(seeds=(0,)), tmp_path)["alibi-0"] == "finished"


@pytest.mark.slow
def test_a_gpu_is_asked_for_and_missed_in_one_sentence(two_workers, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        ClusterError, match="device must be 'cpu' on this cluster, got 'cuda', and it has no GPU"
    ):
        run_on_cluster(sweep_of(device="cuda"), tmp_path)
