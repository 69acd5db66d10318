"""The scheduler hears how a process has ended, also one that comes a little later."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

from baton.net.discovery import StaticDirectory
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import process_id
from baton.protocol import ProcessDied
from baton.settings import Settings
from baton_ops.supervisor.death_reports import DeathReports


def test_reports_wait_for_a_scheduler_and_say_what_the_status_says(run_dir: Path) -> None:
    where = StaticDirectory(Settings(run_dir=run_dir))
    with closing(DeathReports(where)) as deaths:
        deaths.add(11, -signal.SIGKILL)
        deaths.add(12, -signal.SIGSEGV)
        with closing(Server(FLEET, where.first(FLEET))) as scheduler:
            heard = list[object]()
            until = time.monotonic() + 60
            while len(heard) < 2 and time.monotonic() < until:
                deaths.send()
                wait((scheduler,), 0.02)
                heard += [received.message for received in scheduler.drain()]
    assert heard == [ProcessDied(process_id(11), False), ProcessDied(process_id(12), True)]
