"""Liveness signal from the main loop of a service to its supervisor.

A process whose main loop is stuck (deadlock, endless loop, blocked system call) still looks healthy
from outside: it exists, its connections stay open, its other threads run. So the loop itself sends
a byte at intervals over the supervisor's control socket.

    supervisor <-- a byte, four times a second -- the loop: `beat` once per iteration

Without a supervisor nothing is sent. A process that never starts its loop is not monitored.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

BEAT_SECONDS = 0.25
"""Interval of the signal. Idle loops must iterate at least as often."""


class Watchdog:
    """Sends the liveness signal over one socket, if attached."""

    def __init__(self) -> None:
        self._line: socket.socket | None = None
        self._next = 0.0

    def attach(self, line: socket.socket) -> None:
        """Send signals over this socket from now on."""
        self._line = line

    @property
    def attached(self) -> bool:
        """True if a supervisor is attached, which also observes how this process exits."""
        return self._line is not None

    def beat(self) -> None:
        """Signal that the loop iterates. Cheap between two signals; never blocks."""
        now = time.monotonic()
        if self._line is not None and now >= self._next:
            self._next = now + BEAT_SECONDS
            # The buffer is full if the supervisor is stopped; the socket is closed if it has
            # exited.
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._line.send(b".", socket.MSG_DONTWAIT)

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Context that signals from a thread: for long work without a loop, such as loading."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                self.beat()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


pulse = Watchdog()
"""The watchdog of this process."""
