"""Scaling waits until the scheduler reports the wanted workers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import structs

from baton.errors import SettingsError, Unavailable
from baton.protocol import Resize
from baton_ops.commands import scale as module
from baton_ops.commands.scale import (
    Options,
    main,
    parse,
    scale,
)
from baton_scheduler.config import Config
from tests.fakes.hash_worker import FakeWorker, worker_info


def options(run_dir: Path, *argv: str) -> Options:
    return Options.load([*argv, "--run-dir", str(run_dir)])


def test_counts_are_read() -> None:
    assert parse(["decode=3", "prefill=0"]) == {"decode": 3, "prefill": 0}


@pytest.mark.parametrize("word", ["decode", "decode=", "=3", "decode=x", "decode=-1", "decode=1.5"])
def test_what_is_no_count_is_refused(word: str) -> None:
    with pytest.raises(SettingsError, match="ROLE=NUMBER"):
        parse([word])


def test_without_a_supervisor_it_says_who_scales_then(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["baton fleet scale", "decode=2", "--run-dir", str(run_dir)]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "kubectl scale" in capsys.readouterr().err


def test_it_waits_until_the_scheduler_shows_them(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    info = structs.replace(worker_info(), role="decode")
    asked: list[Resize] = []
    with ExitStack() as stack:

        def order(run_dir: Path, message: Resize) -> dict[str, str]:
            asked.append(message)
            for name in ("decode-1", "decode-2"):
                stack.enter_context(FakeWorker(scheduler, info, name=name))
            return {"decode-1": "decode", "decode-2": "decode"}

        monkeypatch.setattr(module, "supervised", lambda run_dir: True)
        monkeypatch.setattr(module, "order", order)
        argv = ["baton fleet scale", "decode=2", "--run-dir", str(scheduler.run_dir)]
        monkeypatch.setattr("sys.argv", argv)
        main()
    assert [message.counts for message in asked] == [{"decode": 2}]
    assert capsys.readouterr().out == "ready: decode-1 (decode), decode-2 (decode)\n"


def test_workers_that_never_come_are_said_so(
    scheduler: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "supervised", lambda run_dir: True)
    monkeypatch.setattr(module, "order", lambda run_dir, message: {"decode-1": "decode"})
    with pytest.raises(Unavailable, match="`baton fleet` shows how far"):
        scale(options(scheduler.run_dir, "decode=1", "--seconds", "0.5"))
