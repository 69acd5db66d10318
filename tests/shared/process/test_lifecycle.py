from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from baton.errors import BatonError, HubError, SettingsError
from baton.net.discovery import StaticDirectory
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process import lifecycle
from baton.process.lifecycle import (
    EXIT_FAULT,
    EXIT_MODEL,
    EXIT_SETTINGS,
    Heartbeat,
    Lifecycle,
)
from baton.protocol import Beat, Hello, HelloRequest
from baton.settings import Settings


def test_the_first_signal_drains_and_the_second_ends() -> None:
    life = Lifecycle(drain_seconds=60)
    assert not life.draining and not life.over(idle=True)
    life._on_signal(signal.SIGTERM, None)
    assert life.draining
    assert not life.over(idle=False)
    assert life.over(idle=True)
    with pytest.raises(SystemExit):
        life._on_signal(signal.SIGTERM, None)


def test_draining_ends_when_its_time_is_over() -> None:
    life = Lifecycle(drain_seconds=0)
    life.stop()
    assert life.over(idle=False)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), EXIT_SETTINGS),
        (HubError("x"), EXIT_MODEL),
        (BatonError("x"), EXIT_FAULT),
        (RuntimeError("x"), EXIT_FAULT),
    ],
)
def test_exit_codes_tell_whether_a_restart_can_help(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle.sys, "argv", ["x"])
    monkeypatch.setattr(lifecycle, "setup", lambda *_: None)
    monkeypatch.setattr(Lifecycle, "watch", lambda self: None)

    def serve(settings: Settings, life: Lifecycle) -> int:
        raise error

    with pytest.raises(SystemExit) as ended:
        lifecycle.main("worker", Settings, serve)
    assert ended.value.code == code


@pytest.mark.parametrize(("error", "code"), [(SettingsError("x"), 2), (HubError("x"), 1)])
def test_a_command_fails_with_one_sentence(
    error: BatonError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        lifecycle.fail("baton sing", error)
    assert (ended.value.code, capsys.readouterr().err) == (code, "baton sing: x\n")


def test_the_heart_beats_while_the_main_thread_computes(run_dir: Path) -> None:
    settings = Settings(run_dir=run_dir)
    directory = StaticDirectory(settings)
    hello = Hello("worker", "w", 1, "0")
    with Server(FLEET, directory.first(FLEET)) as server:
        heart = Heartbeat(FLEET, directory, hello, lambda: (7, True))
        heart.start()
        beats = []
        end = time.monotonic() + 60
        while len(beats) < 2 and time.monotonic() < end:
            wait((server,), 0.2)
            beats += list(server.drain())
        assert beats[0].message == Beat("w", 1, 7, True)
        assert not heart.rejected.is_set()
        server.send(beats[0].peer, HelloRequest(5))
        assert heart.rejected.wait(60)
        heart.stop()
        assert not heart.is_alive()
