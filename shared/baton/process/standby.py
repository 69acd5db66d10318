"""Standby processes: fully loaded, idle until the supervisor activates them.

    supervisor                     standby process, on its control socket
      | -- starts --------------->  |   imports, reads, loads; then `wait`
      |    ...                      |   binds no socket, serves no requests
      | -- one byte ------------->  |   the active process has died: bind and serve

In a process that is not a standby, `wait` returns at once.
"""

from __future__ import annotations

import threading

_called = threading.Event()
_called.set()


def hold() -> None:
    """Mark this process as a standby: `wait` blocks from now on."""
    _called.clear()


def call() -> None:
    """Activate this process."""
    _called.set()


def wait() -> None:
    """Block until this process is active. Call it after loading resources that two processes can
    share, such as files, and before acquiring exclusive ones, such as addresses."""
    _called.wait()
