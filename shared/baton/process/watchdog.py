"""A sign of life that the main loop of a service gives to whoever supervises it.

A process whose loop stands still, in a deadlock, an endless loop or a system call that does not
return, looks well from outside: it exists, its connections stand, its other threads go on. So the
loop itself says that it turns: a byte now and then, on the leash that the supervisor holds.

    supervisor <-- a byte, four times a second -- the loop: `beat` once per turn

A process without a supervisor tells nobody, and nobody is told of what never began to turn.
"""

from __future__ import annotations

import contextlib
import socket
import time

BEAT_SECONDS = 0.25
"""Interval of the signs. Loops must turn as often when they have nothing to do."""


class Watchdog:
    """Signs on one socket, or on none."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._next = 0.0

    def attach(self, line: socket.socket) -> None:
        """From now on, tell who holds the other end."""
        self._line = line

    def beat(self) -> None:
        """The loop turns. Costs nothing between two signs, and never waits."""
        now = time.monotonic()
        if self._line is not None and now >= self._next:
            self._next = now + BEAT_SECONDS
            # Who does not read has been stopped, and has signs enough. Who is gone pulls the leash.
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._line.send(b".", socket.MSG_DONTWAIT)


pulse = Watchdog()
"""That of this process."""
