"""Supervision of toy processes: death, restart, hopeless exits, drain in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_ops.local import (
    FIRST_DELAY,
    HEALTHY_SECONDS,
    LONGEST_DELAY,
    TICK_SECONDS,
    Backoff,
    Supervisor,
    describe,
)

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


def tick_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    """Tick as `baton serve` does, for at most 20 s."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "this did not happen"
        supervisor.tick()
        time.sleep(TICK_SECONDS)


def pid(supervisor: Supervisor, service: str) -> int:
    process = supervisor.children[service].process
    return process.pid if process is not None else 0


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_backoff_doubles_up_to_a_bound_and_forgets_after_good_health() -> None:
    backoff = Backoff()
    pauses = [backoff.after(lived=0.1) for _ in range(8)]
    assert pauses[:4] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY, 8 * FIRST_DELAY]
    assert pauses[-1] == LONGEST_DELAY
    assert backoff.after(lived=HEALTHY_SECONDS) == FIRST_DELAY


def test_ends_are_described_in_words() -> None:
    assert describe(-signal.SIGKILL) == "was killed by SIGKILL"
    assert describe(70) == "ended with exit code 70"


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
    assert lines == [f"worker[{before}] was killed by SIGKILL: restarting in 0.2 s"]


@pytest.mark.parametrize("code", [2, 3])
def test_an_exit_that_no_restart_can_help_is_the_verdict(
    make: Callable[..., Supervisor], code: int
) -> None:
    supervisor = make(gateway=SLEEP, worker=f"import sys; sys.exit({code})")
    supervisor.start()
    tick_until(supervisor, lambda: supervisor.verdict is not None)
    assert supervisor.verdict == ("worker", code)
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
        "time.sleep(600)"
    )
    supervisor = make(worker=f"NAME = 'worker'\n{on_term}", gateway=f"NAME = 'gateway'\n{on_term}")
    supervisor.start()
    tick_until(supervisor, lambda: len(list(tmp_path.glob("order.*"))) == 2)
    supervisor.drain()
    assert log.read_text().split() == ["gateway", "worker"]
    assert supervisor.restarts() == 0


def test_a_worker_that_dies_while_the_gateway_drains_is_restarted(
    make: Callable[..., Supervisor],
) -> None:
    slow = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), sys.exit(0)))\n"
        "time.sleep(600)"
    )
    once = "import os, sys, time; time.sleep(0.3); sys.exit(70)"
    supervisor = make(gateway=slow, worker=once)
    supervisor.start()
    time.sleep(0.2)
    supervisor.drain()
    assert supervisor.children["worker"].restarts >= 1


def test_a_child_that_will_not_leave_is_killed(
    make: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_ops.local.LEAVE_SECONDS", 0.3)
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
