"""Supervision of toy processes: death, restart, fatal exit codes, ordered drain."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.supervisor import Supervisor
from tests.fakes.supervisor_loop import tick_until

SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@pytest.fixture
def make() -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def build(drain_seconds: float = 5.0, **codes: str) -> Supervisor:
        commands = {name: python(code) for name, code in codes.items()}
        made.append(Supervisor(commands, os.environ, drain_seconds))
        return made[-1]

    yield build
    for supervisor in made:
        supervisor.kill()


def pid(supervisor: Supervisor, service: str) -> int:
    process = supervisor.children[service].process
    return process.pid if process is not None else 0


def test_every_death_is_told_with_its_process_and_status(
    make: Callable[..., Supervisor],
) -> None:
    supervisor, told = make(a=SLEEP), list[tuple[int, int]]()
    supervisor.report_to(lambda number, code: told.append((number, code)))
    supervisor.start()
    supervisor.add("b", python("raise SystemExit(7)"))
    killed, failed = pid(supervisor, "a"), pid(supervisor, "b")
    os.kill(killed, signal.SIGKILL)
    tick_until(supervisor, lambda: {(killed, -signal.SIGKILL), (failed, 7)} <= set(told))


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_child_is_reported_in_one_line_and_restarted(
    make: Callable[..., Supervisor], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make(gateway=SLEEP, worker=SLEEP)
    supervisor.start()
    before, other = pid(supervisor, "worker"), pid(supervisor, "gateway")
    os.kill(before, signal.SIGKILL)
    tick_until(supervisor, lambda: pid(supervisor, "worker") not in {0, before})
    assert pid(supervisor, "gateway") == other
    assert supervisor.children["worker"].restarts == supervisor.restarts() == 1
    lines = [r.getMessage() for r in caplog.records]
    assert lines == [f"worker[{before}] was killed by SIGKILL: restarting at once"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_stopped_child_is_killed_where_nobody_may_wait_and_left_where_one_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    commands = {"gateway": python(SLEEP), "worker": python(SLEEP)}
    limits = {"gateway": InactivityLimits(stopped=0.1)}
    supervisor = Supervisor(commands, os.environ, 5.0, limits=limits)
    try:
        supervisor.start()
        gateway, worker = pid(supervisor, "gateway"), pid(supervisor, "worker")
        for number in (gateway, worker):
            os.kill(number, signal.SIGSTOP)
        tick_until(supervisor, lambda: pid(supervisor, "gateway") not in {0, gateway})
        assert not alive(gateway)
        assert pid(supervisor, "worker") == worker
    finally:
        supervisor.kill()
    lines = [r.getMessage() for r in caplog.records]
    assert lines[0] == f"gateway[{gateway}] is stopped: killing it"
    assert lines[-1].startswith(f"gateway[{gateway}] was killed by SIGKILL: restarting")


BEATING = (
    "import os, socket, time\n"
    "from baton.process.watchdog import pulse\n"
    "pulse.attach(socket.socket(fileno=os.dup(0)))\n"
    "for _ in range(3): pulse.beat(); time.sleep(0.3)\n"
)
"""A service whose loop turns for a second; what it does then follows."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("then", ["while True: pass", "time.sleep(600)"], ids=["loops", "sleeps"])
def test_a_child_whose_loop_stands_still_is_killed_and_replaced(
    caplog: pytest.LogCaptureFixture, then: str
) -> None:
    commands = {
        "gateway": [sys.executable, "-c", BEATING + then],
        "tokenizer": [sys.executable, "-c", BEATING + "while True: pulse.beat(); time.sleep(0.05)"],
        "scheduler": python(SLEEP),
    }
    limits = dict.fromkeys(commands, InactivityLimits(hung=1.0))
    supervisor = Supervisor(commands, os.environ, 5.0, limits=limits)
    try:
        supervisor.start()
        before = {name: pid(supervisor, name) for name in commands}
        tick_until(supervisor, lambda: pid(supervisor, "gateway") not in {0, before["gateway"]})
        assert not alive(before["gateway"])
        assert pid(supervisor, "tokenizer") == before["tokenizer"], "its loop turns"
        assert pid(supervisor, "scheduler") == before["scheduler"], "it has never begun to turn"
    finally:
        supervisor.kill()
    lines = [r.getMessage() for r in caplog.records]
    hung = f"gateway[{before['gateway']}]"
    assert lines[0] == f"{hung} hangs: its main loop makes no progress: killing it"
    assert lines[1].startswith(f"{hung} was killed by SIGKILL: restarting")


@pytest.mark.parametrize("code", [2, 3])
def test_an_exit_that_no_restart_can_help_is_the_verdict(
    make: Callable[..., Supervisor], code: int
) -> None:
    supervisor = make(gateway=SLEEP, worker=f"import sys; sys.exit({code})")
    supervisor.start()
    tick_until(supervisor, lambda: supervisor.fatal_exit is not None)
    assert supervisor.fatal_exit == ("worker", code)
    supervisor.tick()
    assert pid(supervisor, "worker") == 0


def test_drain_ends_the_gateway_before_the_others(
    make: Callable[..., Supervisor], tmp_path: Path
) -> None:
    log = tmp_path / "order"
    on_term = (
        "import signal, sys, time\n"
        "def leave(*_):\n"
        f"    open({str(log)!r}, 'a').write(NAME + '\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        f"open({str(log)!r} + '.' + NAME, 'w')\n"
        "while True: time.sleep(0.05)"  # A signal just before one long sleep would not end it.
    )
    supervisor = make(worker=f"NAME = 'worker'\n{on_term}", gateway=f"NAME = 'gateway'\n{on_term}")
    supervisor.start()
    tick_until(supervisor, lambda: len(list(tmp_path.glob("order.*"))) == 2)
    supervisor.drain()
    assert log.read_text().split() == ["gateway", "worker"]
    assert supervisor.restarts() == 0


def test_a_worker_that_dies_while_the_gateway_drains_is_restarted(
    make: Callable[..., Supervisor], tmp_path: Path
) -> None:
    """The first worker ends once the gateway drains, which it does until there is a second one."""
    files = (
        f"import os, signal, sys, time\nos.chdir({str(tmp_path)!r})\n"
        "def wait(name):\n"
        "    while not os.path.exists(name): time.sleep(0.01)\n"
    )
    slow = (
        f"{files}"
        "def leave(*_): open('drains', 'w'); wait('second'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "open('ready', 'w')\n"
        "while True: time.sleep(0.05)"
    )
    dying = (
        f"{files}if os.path.exists('first'): open('second', 'w'); time.sleep(600)\n"
        "open('first', 'w'); wait('drains'); sys.exit(70)"
    )
    supervisor = make(drain_seconds=60.0, gateway=slow, worker=dying)
    supervisor.start()
    tick_until(supervisor, lambda: {"ready", "first"} <= {f.name for f in tmp_path.iterdir()})
    supervisor.drain()
    assert supervisor.children["worker"].restarts >= 1


def test_a_child_that_will_not_leave_is_killed(
    make: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_ops.supervisor.supervisor.LEAVE_SECONDS", 0.3)
    supervisor = make(drain_seconds=0.1, gateway=STUBBORN)
    supervisor.start()
    number = pid(supervisor, "gateway")
    time.sleep(0.3)
    supervisor.drain()
    assert not alive(number)


def test_kill_ends_all_at_once(make: Callable[..., Supervisor]) -> None:
    supervisor = make(gateway=STUBBORN, worker=STUBBORN)
    supervisor.start()
    numbers = [pid(supervisor, "gateway"), pid(supervisor, "worker")]
    supervisor.kill()
    assert not any(alive(n) for n in numbers)
