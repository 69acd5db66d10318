"""A supervised service whose main loop can be blocked, for chaos tests.

python -m tests.fakes.hanging_service [--spare] SERVICE [flags]
"""

from __future__ import annotations

import signal
import time
from types import FrameType

from baton_ops.supervisor.child_main import main

HANG = signal.SIGUSR1
"""The signal that does it. Its other threads go on, and its connections stand."""


def _hang(number: int, frame: FrameType | None) -> None:
    time.sleep(1e6)


if __name__ == "__main__":
    signal.signal(HANG, _hang)
    main()
