"""A fork server: a process that has loaded everything once, and forks those that serve.

    supervisor                           fork server, one thread
      | -- starts --------------------->  |   imports, loads, warms up; then `wait`
      | -- command line, a socket ----->  |   forks
      | <- process id, on that socket --  +--> the new process, a child of the supervisor: serves

A fork has what its server has loaded, in the same memory until one of the two writes to it. It
takes milliseconds, however long the server took, and the server stays for the next one. Requests
that come while the server loads wait for it; if it dies first, the end of their socket says so.

The server has no second thread, since a fork has the calling thread only: threads of libraries are
started in the new process (`baton.process.standby.when_active`). A server that cannot fork all the
same says why, and serves itself.
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
    """Life cycle: `wait` often, until it returns a command line: then this process serves."""

    def __init__(self) -> None:
        """The control socket of the supervisor is standard input; that of a new process will be."""
        self._control = socket.socket(fileno=os.dup(0))

    def wait(self, seconds: float | None = None) -> list[str] | None:
        """Fork for every request that comes within `seconds`; None waits for ever. Returns the
        command line of the request in the new process, and None in this one. Ends the process when
        the supervisor is gone."""
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
        """Fork; true in the process that is to serve with this control socket."""
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
