"""The operator's view of the fleet, and draining a worker, against a real scheduler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from baton.errors import Unavailable
from baton.service import Life
from baton_ops.fleet import Show, ask, main, table
from baton_scheduler.config import Config
from baton_scheduler.service import serve
from tests.fakes.worker import FakeWorker


@pytest.fixture
def scheduler(run_dir: Path) -> Iterator[Config]:
    config, life = Config(run_dir=run_dir), Life(drain_seconds=5.0)
    thread = threading.Thread(target=serve, args=(config, life), daemon=True)
    thread.start()
    yield config
    life.stop()
    thread.join(timeout=15)


def test_every_worker_is_a_line(scheduler: Config) -> None:
    with FakeWorker(scheduler, name="one"), FakeWorker(scheduler, name="two"):
        stats = ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 2)
    console = Console(file=StringIO(), width=120)
    console.print(table(stats))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "one" in text and "two" in text and "256 of 256" in text


def test_nobody_answers(run_dir: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
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
