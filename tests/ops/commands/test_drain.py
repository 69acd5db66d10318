from __future__ import annotations

import pytest

from baton.errors import NotFound
from baton.protocol import Stats, WorkerStats
from baton_ops.commands.drain import (
    Drain,
    _done,
    drain,
    main,
)
from baton_ops.commands.fleet import Show, ask
from baton_scheduler.config import Config
from tests.fakes.hash_worker import FakeWorker


def test_it_is_marked_and_told(scheduler: Config) -> None:
    with FakeWorker(scheduler, name="one"), FakeWorker(scheduler, name="two"):
        show = Show(run_dir=scheduler.run_dir)
        ask(show, lambda stats: len(stats.workers) == 2)
        drain(Drain(worker="one", run_dir=scheduler.run_dir))
        stats = ask(show, lambda stats: True)
    assert {w.name: w.state for w in stats.workers} == {"one": "draining", "two": "ready"}


def test_an_unknown_name_is_refused_with_the_known_ones(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeWorker(scheduler, name="one"):
        ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 1)
        with pytest.raises(NotFound, match="Known: one"):
            drain(Drain(worker="other", run_dir=scheduler.run_dir))
        argv = ["baton drain", "other", "--run-dir", str(scheduler.run_dir)]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1 and "Known: one" in capsys.readouterr().err


@pytest.mark.parametrize(("running", "done"), [(0, True), (1, False)])
def test_done_is_nothing_left_to_run(running: int, done: bool) -> None:
    worker = WorkerStats(
        "w", "both", "draining", "cpu", "float32", running, 8, 8, 0, 0.0, 0.0, 0, 0
    )
    stats = Stats(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, workers=(worker,))
    assert _done(stats, "w") is done
    assert _done(stats, "gone")
