"""A service process as its supervisor holds it: by a leash, on which both sides can say one thing.

supervisor -- a byte ----------> the spare: it is your turn    (`baton.process.standby`)
           <- a byte now and then, the service: I turn         (`baton.process.watchdog`)
           -- end of file -----> the supervisor is gone: end   (`baton_ops.supervisor.child_main`)
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Mapping, Sequence


class ChildProcess(subprocess.Popen[bytes]):
    """Life cycle: it runs from the beginning; `close` once it is dead or dying."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """In a group of its own, so that Ctrl-C reaches the supervisor only."""
        self._leash, theirs = socket.socketpair()
        self._leash.setblocking(False)
        with theirs:
            stdin = theirs.fileno()
            super().__init__(list(command), env=environment, stdin=stdin, process_group=0)

    def call(self) -> bool:
        """Let a spare begin. False when it is dead."""
        with contextlib.suppress(OSError):
            return self.poll() is None and self._leash.send(b"\n") == 1
        return False

    def told(self) -> bool:
        """Whether its loop has turned since the last call."""
        with contextlib.suppress(OSError):  # Nothing has come, or it has died.
            return bool(self._leash.recv(4096))
        return False

    def close(self) -> None:
        """Take note of its end, and let go of the leash."""
        self.wait()
        self._leash.close()
