"""A process in reserve: everything is loaded, nothing has begun, until it is its turn.

    supervisor                     spare, on its leash
      | -- starts --------------->  |   imports, reads, loads; then `wait`
      |    ...                      |   holds no socket, knows nobody, answers nothing
      | -- one byte ------------->  |   the one before it has died: it binds and serves

A process that is no spare never waits.
"""

from __future__ import annotations

import threading

_called = threading.Event()
_called.set()


def hold() -> None:
    """This process is a spare: let `wait` wait."""
    _called.clear()


def call() -> None:
    """It is this process's turn."""
    _called.set()


def wait() -> None:
    """Return when it is this process's turn. What can be shared by two processes, as a file that
    is read, comes before this; what only one may have, as an address, after it."""
    _called.wait()
