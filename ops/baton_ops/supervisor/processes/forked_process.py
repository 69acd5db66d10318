"""Child processes created by a fork server (`baton.process.fork_server`)."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from baton_ops.supervisor.processes.child_process import Controlled

_LINE = 32
"""Bytes of the line with a process id."""
_POLL_SECONDS = 0.01


class ForkedProcess(Controlled):
    """A child of this process, like a `ChildProcess`, but created by a fork server."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """As of `subprocess.Popen`; None while it runs."""
        self._control = control

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code, once there is one.

        Raises:
            subprocess.TimeoutExpired: it has not exited within `timeout` seconds.
        """
        if timeout is None:
            return self._reap(0)
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_SECONDS)
        return self.returncode

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Reap the process and close its socket."""
        self.wait()
        self._control.close()


class ForkRequest:
    """A process requested from a fork server. Life cycle: `poll` until it exists or has `failed`;
    `close` otherwise."""

    def __init__(self, server: Controlled, command: Sequence[str]) -> None:
        """Command of the process that the new one replaces."""
        self._control, remote = socket.socketpair()
        self._control.setblocking(False)
        self._line = b""
        with remote:
            self.failed = not server.call(command, remote)
            """The server has exited before it forked."""

    def poll(self) -> ForkedProcess | None:
        """Return the new process, once its id has arrived."""
        while not self.failed and not self._line.endswith(b"\n"):
            try:
                # The data after the line are reports of its main loop.
                received = self._control.recv(1)
            except BlockingIOError:
                return None
            except ConnectionError:
                received = b""
            self._line += received
            self.failed = not received or len(self._line) > _LINE
        return None if self.failed else ForkedProcess(int(self._line), self._control)

    def wait(self, seconds: float) -> ForkedProcess | None:
        """Return the new process, or None if it `failed` or does not exist in time."""
        deadline = time.monotonic() + seconds
        while (process := self.poll()) is None and not self.failed:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._control], [], [], left)[0]:
                return None
        return process

    def close(self) -> None:
        """Abandon it: the new process ends with the socket."""
        self._control.close()
