"""A worker changes its role while it runs, and keeps it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from baton.errors import NotFound, SettingsError
from baton.process.lifecycle import Lifecycle
from baton.protocol import Message, Stats
from baton_ops.commands import role as module
from baton_ops.commands.fleet import Show, ask
from baton_ops.commands.role import Options, assign, main
from baton_scheduler.config import Config
from baton_scheduler.service import serve
from tests.fakes.hash_worker import FakeWorker
from tests.support.served_system import until


def options(run_dir: Path, worker: str, role: str) -> Options:
    return Options.load([worker, role, "--run-dir", str(run_dir)])


def roles(stats: Stats) -> dict[str, str]:
    return {w.name: w.role for w in stats.workers}


def test_it_is_changed_and_shown(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeWorker(scheduler, name="one") as one, FakeWorker(scheduler, name="two"):
        show = Show(run_dir=scheduler.run_dir)
        ask(show, lambda stats: len(stats.workers) == 2)
        argv = ["baton fleet role", "one", "prefill", "--run-dir", str(scheduler.run_dir)]
        monkeypatch.setattr("sys.argv", argv)
        main()
        assert roles(ask(show, lambda stats: True)) == {"one": "prefill", "two": "both"}
    assert capsys.readouterr().out == "one is prefill now\n"
    assert one.info.role == "prefill", "the worker was told"


def test_another_scheduler_hears_it_from_the_worker(run_dir: Path) -> None:
    config, show = Config(run_dir=run_dir), Show(run_dir=run_dir)

    def run() -> tuple[Lifecycle, threading.Thread]:
        life = Lifecycle(drain_seconds=5.0)
        thread = threading.Thread(target=serve, args=(config, life), daemon=True)
        thread.start()
        return life, thread

    life, thread = run()
    with FakeWorker(config, name="one") as one:
        ask(show, lambda stats: len(stats.workers) == 1)
        assert assign(options(run_dir, "one", "decode")) == ""
        until(lambda: one.info.role == "decode", "the worker hears its role")
        life.stop()
        thread.join(timeout=60)
        life, thread = run()
        stats = ask(show, lambda stats: bool(stats.workers))
        assert one.joined.wait(60)
    assert roles(stats) == {"one": "decode"}
    life.stop()
    thread.join(timeout=60)


def test_an_unknown_name_is_refused_with_the_known_ones(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeWorker(scheduler, name="one"):
        ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 1)
        with pytest.raises(NotFound, match="Known: one"):
            assign(options(scheduler.run_dir, "other", "both"))
        argv = ["baton fleet role", "other", "both", "--run-dir", str(scheduler.run_dir)]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1 and "Known: one" in capsys.readouterr().err


def test_an_unknown_role_is_refused_before_anybody_is_asked(run_dir: Path) -> None:
    with pytest.raises(SettingsError, match="'prefill'"):
        options(run_dir, "one", "sorcerer")


@pytest.mark.parametrize("reason", ["", "a restart forgets its role"])
def test_a_supervisor_of_this_host_is_told_too(
    scheduler: Config, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Message] = []

    def order(run_dir: Path, message: Message) -> dict[str, str]:
        told.append(message)
        if reason:
            raise SettingsError(reason)
        return {}

    monkeypatch.setattr(module, "supervised", lambda run_dir: True)
    monkeypatch.setattr(module, "order", cast(object, order))
    with FakeWorker(scheduler, name="one"):
        ask(Show(run_dir=scheduler.run_dir), lambda stats: len(stats.workers) == 1)
        assert assign(options(scheduler.run_dir, "one", "decode")) == reason
    assert [(m.name, m.role) for m in told] == [("one", "decode")]  # type: ignore[attr-defined]
