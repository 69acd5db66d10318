"""A child process and the socket that connects it to its supervisor.

supervisor -- a line ------> child: a spare starts to serve      (`baton.process.standby`)
           <- bytes -------- child: the main loop is alive       (`baton.process.watchdog`)
           -- end of file -> child: the supervisor is gone: exit (`baton_ops.supervisor.child_main`)
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

CHILD_MAIN = (sys.executable, "-m", "baton_ops.supervisor.child_main")
"""Entry point of child processes."""


class Controlled(ABC):
    """A child process with a control socket."""

    _control: socket.socket
    returncode: int | None

    @abstractmethod
    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def call(self, command: Sequence[str], control: socket.socket | None = None) -> bool:
        """Activate a spare in place of the process with this command. False if it has exited.

        `control`: control socket of the process that a fork server is to create.
        """
        line = json.dumps(list(command)).encode() + b"\n"
        descriptors = [] if control is None else [control.fileno()]
        with contextlib.suppress(OSError):
            num_sent = (
                socket.send_fds(self._control, [line], descriptors) if self.poll() is None else 0
            )
            return num_sent == len(line)
        return False

    def has_reported(self) -> bool:
        """Return whether the child's main loop has reported since the last call."""
        with contextlib.suppress(OSError):  # No report yet, or the child has exited.
            return bool(self._control.recv(4096))
        return False

    def hand_over(self) -> None:
        """Forget the process, which continues as another `ForkedProcess`."""
        self.returncode = 0
        self._control.close()


class ChildProcess(Controlled, subprocess.Popen[bytes]):
    """Life cycle: running once created; `close` once it has exited or is exiting."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts the process in its own process group, so that Ctrl-C reaches only the
        supervisor."""
        self._control, remote = socket.socketpair()
        self._control.setblocking(False)
        with remote:
            stdin = remote.fileno()
            subprocess.Popen.__init__(
                self, list(command), env=environment, stdin=stdin, process_group=0
            )

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return subprocess.Popen.poll(self)

    def close(self) -> None:
        """Reap the process and close the socket."""
        self.wait()
        self._control.close()
