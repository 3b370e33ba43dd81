"""The refusals of the lab's report and of its cluster, for ``tests/test_errors.py``."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from synthetic_records import write_sweep

from ordinate.lab.config import RunConfig
from ordinate.lab.records import Sweep
from ordinate.lab.report import api as report
from ordinate.lab.report.api import read_report, write_report
from ordinate.lab.report.gather import NothingToReport
from ordinate.lab.run import cluster
from ordinate.lab.run.cluster import ClusterError, Job, run_on_cluster
from ordinate.lab.run.progress import Progress

_FOLDER = tempfile.TemporaryDirectory(prefix="ordinate-errors-")
HERE = Path(_FOLDER.name)
SWEEP = Sweep(("rope",), (0,), RunConfig("rope", device="cuda").settings())


def comparison(name: str) -> Path:
    if not (HERE / name).exists():
        write_sweep(HERE / name, ["rope"], seeds=(0,))
    return HERE / name


def unfinished() -> None:
    folder = comparison("unfinished")
    (folder / "runs/rope-0/result.json").unlink(missing_ok=True)
    read_report(folder)


def of_numbers() -> None:
    folder = comparison("numbers")
    text = (folder / "sweep.json").read_text()
    (folder / "sweep.json").write_text(text.replace('"rope"', "1", 1))
    read_report(folder)


def without_plotly() -> None:
    with mock.patch.object(report, "find_spec", return_value=None):
        write_report(comparison("whole"))


def without_ray() -> None:
    with mock.patch.dict(sys.modules, {"ray": None}):
        run_on_cluster(SWEEP, HERE / "cluster")


def without_gpus() -> None:
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    cluster._Dispatch(ray, SWEEP.configs()[0], HERE, {}, Progress(), lambda directory: ())


def with_few_cores() -> None:
    machines = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]
    ray = SimpleNamespace(nodes=lambda: machines)
    config = dataclasses.replace(SWEEP.configs()[0], device="cpu", threads=8)
    cluster._Dispatch(ray, config, HERE, {}, Progress(), lambda directory: ())


def work(version: str = cluster.ordinate.__version__) -> None:
    job = Job(SWEEP.configs()[0], HERE / "not-there", HERE / "not-there/runs/rope-0", "", version)
    cluster._work(job, lambda directory: ())


# What is wrong · how it is called · the exception · its words: the argument, the rule, the value.
CASES = [
    ("report without a finished run", unfinished, NothingToReport, r"unfinished has no finished run, of 1 in its sweep\.json"),
    ("report of a sweep of numbers", of_numbers, ValueError, r"sweep\.json must be that of a comparison, cannot be read: spec must be text such as 'rope:base=1e6', got 1"),
    ("report without plotly", without_plotly, ModuleNotFoundError, r"a report needs matplotlib and plotly, not installed here: pip install 'ordinate\[lab\]'"),
    ("cluster without ray", without_ray, ClusterError, r"a cluster needs ray, not installed here: pip install 'ordinate\[cluster\]'"),
    ("cluster without a GPU", without_gpus, ClusterError, r"device must be 'cpu' on this cluster, got 'cuda', and it has no GPU"),
    ("cluster of small machines", with_few_cores, ClusterError, r"threads must be at most 2, the cores of the largest machine of this cluster, got 8"),
    ("cluster of another version", lambda: work("9.9"), ClusterError, r"every machine must have ordinate 9\.9, got one with \d"),
    ("cluster without shared storage", work, ClusterError, r"out must be on storage that all machines share, got .*not-there"),
    ("cluster where nobody answers", lambda: cluster._connect(None, "localhost:1", Progress()), ClusterError, r"cluster must be 'auto' or the address of a running Ray cluster, got 'localhost:1'"),
    ("cluster of a word", lambda: cluster._connect(None, "nonsense", Progress()), ClusterError, r"cluster must be 'auto' or the address of a running Ray cluster, got 'nonsense'"),
]  # fmt: skip
