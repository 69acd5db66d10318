"""The scheduler hears how a process has ended, also one that comes a little later."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

from baton.net.discovery import StaticDirectory
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import EXIT_GROUP, process_id
from baton.protocol import ProcessDied
from baton.settings import Settings
from baton_ops.supervisor.death_reports import DeathReports


def test_reports_wait_for_a_scheduler_and_say_what_the_status_says(run_dir: Path) -> None:
    where = StaticDirectory(Settings(run_dir=run_dir))
    with closing(DeathReports(where)) as deaths:
        deaths.add(11, -signal.SIGKILL)
        deaths.add(13, EXIT_GROUP)
        deaths.add(12, -signal.SIGSEGV)
        with closing(Server(FLEET, where.first(FLEET))) as scheduler:
            heard = list[object]()
            until = time.monotonic() + 60
            while len(heard) < 3 and time.monotonic() < until:
                deaths.send()
                wait((scheduler,), 0.02)
                heard += [received.message for received in scheduler.drain()]
    died = [(11, False), (12, True), (13, True)]
    assert heard == [ProcessDied(process_id(pid), inside) for pid, inside in died]


def test_who_ends_with_its_group_ends_as_the_first_of_it_did(run_dir: Path) -> None:
    """By a signal from outside; where nobody is seen to have died first, perhaps from inside."""
    where = StaticDirectory(Settings(run_dir=run_dir))
    with (
        closing(DeathReports(where)) as deaths,
        closing(Server(FLEET, where.first(FLEET))) as scheduler,
    ):
        heard = list[object]()

        def hear(count: int) -> None:
            until = time.monotonic() + 60
            while len(heard) < count and time.monotonic() < until:
                deaths.send()
                wait((scheduler,), 0.02)
                heard.extend(received.message for received in scheduler.drain())

        deaths.add(21, EXIT_GROUP)
        hear(1)
        deaths.add(22, EXIT_GROUP)
        deaths.add(23, -signal.SIGKILL)
        hear(3)
    died = [(21, True), (23, False), (22, False)]
    assert heard == [ProcessDied(process_id(pid), inside) for pid, inside in died]
