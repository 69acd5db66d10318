"""Be the loop of `baton serve` until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable

from baton_ops.supervisor.supervisor import TICK_SECONDS, Supervisor


def tick_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    """Tick as `baton serve` does, for at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "this did not happen"
        supervisor.tick()
        time.sleep(TICK_SECONDS)
