"""`baton bench` end to end against a mock server that counts requests."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from baton.errors import SettingsError, Unavailable
from baton_ops.bench import serve
from baton_ops.bench.serve import Bench
from tests.fakes.openai_server import Completions


def measure(url: str, out: Path, **options: object) -> tuple[dict[str, object], str]:
    """Run a short benchmark: the JSON that it wrote and what it printed."""
    small = {"input_len": 8, "output_len": 4, "run_seconds": 1.0, "concurrency": (1, 2)}
    printed = io.StringIO()
    settings = Bench(url=url, out=out, **{**small, **options})
    paths = serve.run(settings, Console(file=printed, width=80))
    assert [path.suffix for path in paths] == [".json", ".png"]
    assert all(path.parent == out and path.stat().st_size for path in paths)
    return json.loads(paths[0].read_text()), printed.getvalue()


def test_measures_all_kinds_of_runs(url: str, fake: Completions, tmp_path: Path) -> None:
    report, printed = measure(url, tmp_path, rates=(20.0,), rounds=3)
    runs = report["runs"]
    assert isinstance(runs, list)
    names = ["fixed x1", "fixed x2", "fixed 20.00/s", "mixed x2", "mixed 20.00/s"]
    assert [run["name"] for run in runs] == names
    assert [run["summary"]["failed"] for run in runs] == [0] * 5
    first = runs[1]["summary"]
    assert (first["successful"], first["input_tokens"], first["output_tokens"]) == (6, 48, 24)
    assert all(name in printed for name in [*names, "Mean TTFT (ms)", "P99 E2EL (ms)"])
    assert report["model"] == "fake" and "key" not in report["settings"]
    # two requests tell the prompt kind and warm up; then nothing is asked that is not counted
    assert len(fake.asked) == 3 + sum(run["summary"]["successful"] for run in runs)


def test_the_gap_between_steps_is_told_where_the_server_tells(
    url: str, fake: Completions, tmp_path: Path
) -> None:
    report, printed = measure(url, tmp_path, shapes=("fixed",), rates=(9.0,))
    assert {run["gap_ms"] for run in report["runs"]} == {None} and "Gap" not in printed
    workers = [{"name": "a", "gap_ms": 0.5}, {"name": "b", "gap_ms": 1.25}, {"name": "old"}]
    fake.app.get("/fleet")(lambda: {"workers": workers})
    report, printed = measure(url, tmp_path, shapes=("fixed",), rates=(9.0,))
    assert {run["gap_ms"] for run in report["runs"]} == {1.25}
    [line] = [line for line in printed.splitlines() if "Gap between steps (ms)" in line]
    assert line.count("1.250") == 3
    assert [worker["name"] for worker in report["workers"]] == ["a", "b", "old"]


def test_rates_are_derived_from_the_closed_loop(url: str, tmp_path: Path) -> None:
    report, _ = measure(url, tmp_path, shapes=("fixed",), loads=(0.01,), rounds=8)
    closed = [r["summary"]["request_throughput"] for r in report["runs"][:-1]]
    assert report["runs"][-1]["rate"] == pytest.approx(0.01 * max(closed))


def test_errors_are_counted_and_shown(url: str, fake: Completions, tmp_path: Path) -> None:
    fake.breaks, fake.broken = {4, 5}, "error"
    report, printed = measure(url, tmp_path, shapes=("fixed",), rates=(5.0,))
    assert report["runs"][0]["summary"]["errors"] == {"The worker was lost.": 2}
    assert "fixed x1: 2 x The worker was lost." in printed


def test_a_server_that_fails_every_request_is_not_measured(
    url: str, fake: Completions, tmp_path: Path
) -> None:
    fake.breaks = set(range(1, 100))
    with pytest.raises(Unavailable, match="400: No"):
        measure(url, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command(url: str, tmp_path: Path) -> None:
    flags = [
        "--shapes",
        "fixed",
        "--concurrency",
        "2",
        "--rates",
        "9",
        "--run-seconds",
        "0.5",
        "--input-len",
        "4",
    ]
    command = [sys.executable, "-m", "baton", "bench", "--url", url, "--output-len", "2", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert "fixed x2" in done.stdout and "fixed 9.00/s" in done.stdout
    assert len(list((tmp_path / "bench").glob("*.json"))) == 1


def test_flags() -> None:
    options = Bench.load(
        ["a-model", "--concurrency", "4,16", "--rates", "2.5", "--shapes", "mixed", "--no-offline"]
    )
    assert (options.model, options.concurrency) == ("a-model", (4, 16))
    assert (options.rates, options.shapes) == ((2.5,), ("mixed",))
    with pytest.raises(SettingsError):
        Bench.load(["--concurrency", "0"])
