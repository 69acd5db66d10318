"""A process that ends with the one that holds the other end of its standard input."""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import BinaryIO


def die_with_parent(pipe: BinaryIO) -> None:
    """From now on end this process, at once, when the writing end of a pipe is closed: the kernel
    does that when its holder is gone, however that ended. What was written is left to be read."""
    thread = threading.Thread(target=_wait, args=(pipe.fileno(),), name="leash", daemon=True)
    thread.start()


def _wait(number: int) -> None:
    hung_up = select.poll()
    hung_up.register(number, 0)  # Nothing but the hang-up, which is always told.
    hung_up.poll()
    os.kill(os.getpid(), signal.SIGKILL)
