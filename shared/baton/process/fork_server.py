"""Fork server: a process that has loaded everything once, and forks the serving processes.

    supervisor                           fork server, one thread
      | -- starts --------------------->  |   imports, loads, warms up; then `wait`
      | -- command line, a socket ----->  |   forks
      | <- process id, on that socket --  +--> the new process, a child of the supervisor: serves

A fork shares its server's memory until one of the two writes to it. A fork takes milliseconds,
regardless of loading time, and the server remains for the next one. Requests wait while the server
loads; if it exits first, their socket is closed.

The server has one thread only, since a fork has only the calling thread: threads of libraries are
started in the new process (`baton.process.standby.when_active`). A server that cannot fork logs the
reason, and serves itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time

from baton.logs import logger
from baton.process.clone import fork_sibling

_LONGEST = 1 << 16
"""Bytes of a request."""

log = logger(__name__)


class ForkServer:
    """Life cycle: call `wait` until it returns a command line; then this process serves."""

    def __init__(self) -> None:
        """The supervisor's control socket is standard input; the same will be true of a new
        process."""
        self._control = socket.socket(fileno=os.dup(0))

    def wait(self, seconds: float | None = None) -> list[str] | None:
        """Fork for every request within `seconds`; None waits without limit. Returns the command
        line of the request in the new process, and None in this one. Ends the process when the
        supervisor is gone."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._ready(deadline):
            request, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST, 1)
            if not request.endswith(b"\n") or not descriptors:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._serves(descriptors[0]):
                command: list[str] = json.loads(request)
                return command
        return None

    def _ready(self, deadline: float | None) -> bool:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(select.select([self._control], [], [], left)[0])

    def _serves(self, control: int) -> bool:
        """Fork; True in the process that is to serve with this control socket."""
        try:
            serves = fork_sibling() == 0
        except OSError as error:
            log.warning("cannot fork (%s): this process takes the place itself", error)
            serves = True
        if serves:
            self._control.close()
            os.dup2(control, 0)
        os.close(control)
        if serves:
            os.write(0, b"%d\n" % os.getpid())
            if os.getpgid(0) != os.getpid():
                os.setpgid(0, 0)  # Ctrl-C reaches the supervisor only.
        return serves
