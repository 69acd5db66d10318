"""The operator's view of the fleet, and draining a worker, against a real scheduler."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from baton.errors import Unavailable
from baton.protocol import WorkerInfo
from baton_ops.commands.fleet import (
    Show,
    ask,
    main,
    roles,
    workers,
)
from baton_scheduler.config import Config
from tests.fakes.hash_worker import FakeWorker
from tests.ops.conftest import serving


def test_every_worker_is_a_line(scheduler: Config) -> None:
    with FakeWorker(scheduler, name="one"), FakeWorker(scheduler, name="two"):
        stats = ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 2)
    console = Console(file=StringIO(), width=120)
    console.print(workers(stats), roles(stats))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "one" in text and "two" in text and "256 of 256" in text and "0%" in text
    assert "encode" not in text
    both = next(line for line in text.splitlines() if "│ both │     2 │" in line)
    assert both.split("│")[3].strip() == "1", "nothing to do: one would be enough"


def test_an_encode_worker_has_no_pages_and_a_role_of_its_own(scheduler: Config) -> None:
    encoder = WorkerInfo(
        "fake", 0, 0, 0, 0, 0, 0, role="encode", kv_address="e", encoder_layout="f32"
    )
    with FakeWorker(scheduler, name="one"), FakeWorker(scheduler, encoder, name="encode-1"):
        stats = ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 2)
    console = Console(file=StringIO(), width=120)
    console.print(workers(stats), roles(stats))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    line = next(line for line in text.splitlines() if "encode-1" in line)
    assert "%" not in line and " of " not in line and "│ encode │     1 │" in text


def test_ranks_are_shown_where_requests_belong_to_them(run_dir: Path) -> None:
    config = Config(run_dir=run_dir, placement_policy="modulo")
    with (
        serving(config),
        FakeWorker(config, name="worker-1"),
        FakeWorker(config, name="worker-2"),
    ):
        stats = ask(Show(run_dir=run_dir), lambda stats: len(stats.workers) == 2)
    assert {w.name: w.rank for w in stats.workers} == {"worker-1": 0, "worker-2": 1}
    console = Console(file=StringIO(), width=140)
    console.print(workers(stats))
    assert "rank" in console.file.getvalue()  # type: ignore[attr-defined]


def test_nobody_answers(run_dir: Path) -> None:
    with pytest.raises(Unavailable, match=r"does not answer within 0.3 s.*the same --run-dir"):
        ask(Show(run_dir=run_dir), lambda stats: True, seconds=0.3)


def test_what_never_comes_is_given_up(scheduler: Config) -> None:
    with pytest.raises(Unavailable, match="does not come so far"):
        ask(Show(run_dir=scheduler.run_dir), lambda stats: False, seconds=0.5)


def test_the_command(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton fleet", "--run-dir", str(scheduler.run_dir)])
    main()
    assert "no model yet" in capsys.readouterr().out
