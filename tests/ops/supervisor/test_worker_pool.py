"""Resizing and role changes, with toy processes under a real supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from baton.errors import SettingsError
from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.supervisor import Supervisor
from baton_ops.supervisor.worker_pool import WorkerPool
from tests.fakes.supervisor_loop import tick_until

SLEEP = "import time; time.sleep(600)"
ROLES = {"prefill-1": "prefill", "decode-1": "decode", "decode-2": "decode"}


def command(name: str, role: str, count: int) -> list[str]:
    code = "import sys; sys.exit(3)" if role == "both" else SLEEP
    return [sys.executable, "-S", "-c", code, "--role", role, "--count", str(count)]


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    commands = {name: command(name, role, 3) for name, role in ROLES.items()}
    made = Supervisor(commands, os.environ, 5.0)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def pool(supervisor: Supervisor) -> WorkerPool:
    return WorkerPool(supervisor, ROLES, command)


def test_more_get_the_lowest_numbers_that_are_free(
    supervisor: Supervisor,
) -> None:
    spared = list[tuple[Any, ...]]()

    def spare(*which: Any) -> list[str]:
        spared.append(which)
        return command(*which)

    pool = WorkerPool(supervisor, ROLES, command, spare=spare)
    pool.resize({"decode": 4, "prefill": 1})
    assert spared == [(f"decode-{number}", "decode", 5) for number in (3, 4)]
    assert supervisor.children["decode-4"]._spare is not None
    assert list(supervisor.children)[3:] == ["decode-3", "decode-4"]
    assert supervisor.children["decode-4"].command[-1] == "5"
    assert pool.workers == ROLES | {"decode-3": "decode", "decode-4": "decode"}
    assert supervisor.children["decode-4"].process is not None


def test_who_is_too_many_leaves_and_is_not_restarted(
    pool: WorkerPool, supervisor: Supervisor
) -> None:
    kept, left = supervisor.children["decode-1"].process, list[str]()
    pool = WorkerPool(supervisor, pool.workers, command, on_retire=left.append)
    pool.resize({"decode": 1})
    assert left == ["decode-2"], "it needs what it left behind no more"
    assert pool.workers == {"prefill-1": "prefill", "decode-1": "decode"}
    tick_until(supervisor, lambda: "decode-2" not in supervisor.children)
    assert supervisor.children["decode-1"].process is kept and supervisor.restarts() == 0
    pool.resize({"decode": 2})
    assert "decode-2" in supervisor.children


def test_a_number_is_not_used_again_before_its_owner_is_gone(
    pool: WorkerPool, supervisor: Supervisor
) -> None:
    pool.resize({"decode": 1})
    pool.resize({"decode": 2})
    assert sorted(pool.workers) == ["decode-1", "decode-3", "prefill-1"]


def test_a_new_one_that_is_stopped_is_killed(supervisor: Supervisor) -> None:
    pool = WorkerPool(supervisor, ROLES, command, limits=InactivityLimits(stopped=0.1))
    pool.resize({"decode": 3})
    stopped = supervisor.children["decode-3"].process
    assert stopped is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    tick_until(supervisor, lambda: supervisor.children["decode-3"].process not in (None, stopped))
    assert supervisor.restarts() == 1


def test_one_that_will_not_leave_is_killed(supervisor: Supervisor) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=1)"
    pool = WorkerPool(supervisor, {}, command)
    supervisor._drain_seconds = -5.0  # It has no time at all.
    supervisor.add("stubborn", [sys.executable, "-S", "-c", f"{stubborn}; time.sleep(600)"])
    pool.workers["stubborn"] = "decode"
    time.sleep(0.3)
    pool.resize({"decode": 0, "prefill": 1})
    tick_until(supervisor, lambda: "stubborn" not in supervisor.children)


def test_a_new_one_that_cannot_start_ends_nobody_else(
    pool: WorkerPool, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    pool.resize({"both": 1})
    tick_until(supervisor, lambda: "worker-1" not in supervisor.children)
    assert supervisor.fatal_exit is None
    assert "worker-1 cannot be started" in caplog.text


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"decoder": 1}, "no role decoder. Known: both, prefill, decode"),
        ({"decode": 0, "prefill": 0}, "1 to 64"),
        ({"decode": 64}, "1 to 64"),
        ({"decode": -1}, "1 to 64"),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    pool: WorkerPool, supervisor: Supervisor, counts: dict[str, int], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        pool.resize(counts)
    assert pool.workers == ROLES and list(supervisor.children) == list(ROLES)


def test_a_restart_keeps_the_role(pool: WorkerPool, supervisor: Supervisor) -> None:
    pool.assign("decode-1", "prefill")
    child = supervisor.children["decode-1"]
    assert child.command[4:6] == ["--role", "prefill"] and pool.workers["decode-1"] == "prefill"
    with pytest.raises(SettingsError, match="a restart forgets its role"):
        pool.assign("somebody", "prefill")
    assert child.process is not None
    child.process.kill()
    before = child.process.pid
    tick_until(supervisor, lambda: child.process is not None and child.process.pid != before)
    assert child.process.args[4:6] == ["--role", "prefill"]  # type: ignore[index]


def test_workers_that_share_their_experts_are_as_many_as_they_were(supervisor: Supervisor) -> None:
    pool = WorkerPool(supervisor, ROLES, command, fixed=True)
    with pytest.raises(SettingsError, match="start it with another --data-parallel-size"):
        pool.resize({"decode": 3})
    assert list(supervisor.children) == list(ROLES)
