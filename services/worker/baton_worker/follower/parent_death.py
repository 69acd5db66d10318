"""Exit together with the parent process, detected by the closing of a pipe."""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import BinaryIO


def die_with_parent(pipe: BinaryIO) -> None:
    """Exit this process at once when the write end of `pipe` is closed, which the kernel does on
    any exit of its holder. Buffered data remains readable."""
    thread = threading.Thread(target=_wait, args=(pipe.fileno(),), name="parent-death", daemon=True)
    thread.start()


def _wait(number: int) -> None:
    hung_up = select.poll()
    hung_up.register(number, 0)  # No events requested: a hang-up is always reported.
    hung_up.poll()
    os.kill(os.getpid(), signal.SIGKILL)
