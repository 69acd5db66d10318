"""Standby processes of the supervisor's children (`baton.process.standby`).

Spare        one process for one child: takes its place when it exits
ForkServer   one process for several children, which forks every one of them, at the start and
             whenever one exits (`baton.process.fork_server`)
ForkGroup    those children, and others of their kind that are added later
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from baton.process import standby
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkedProcess, ForkRequest
from baton_ops.supervisor.processes.preloaded_interpreter import Process, Start

FIRST_DELAY = 5.0
"""Pause in seconds before a spare that has exited by itself is restarted; doubles each time."""
LONGEST_DELAY = 300.0
"""CPU priority, since loading takes cores from the others."""
_ENDING_SECONDS = 0.2
"""Time limit from the end of a process's sockets to its exit."""


class Standby:
    """A standby process. Life cycle: call `prepare` repeatedly, `stop` once."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        start: Start = ChildProcess,
    ) -> None:
        self._command, self._environment = list(command), dict(environment)
        self._start = start
        self._process: Process | None = None
        self._next_start, self._delay = 0.0, FIRST_DELAY

    def prepare(self, now: float, replaced: int) -> None:
        """Start the process if there is none. After an early exit, the next attempt is delayed.

        `replaced`: id of the process that it is to replace; 0 if there is none.
        """
        if self.ended() is not None:
            self._reap()
            self._next_start = now + self._delay
            self._delay = min(2 * self._delay, LONGEST_DELAY)
        if self._process is None and now >= self._next_start:
            environment = {**self._environment, standby.REPLACED: str(replaced)}
            self._process = self._start(self._command, environment)

    def ended(self) -> int | None:
        """Return the exit code, if the process has exited by itself."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Stop the process."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


class Spare(Standby):
    """A standby that replaces the first child that exits."""

    def call(self, command: Sequence[str]) -> Process | None:
        """Activate the process in place of one with this command, and return it. None if there is
        none."""
        process, self._process = self._process, None
        if process is None or process.call(command):
            self._delay = FIRST_DELAY
            return process
        process.close()  # It has exited since the last check.
        return None


class ForkServer(Standby):
    """A standby that forks the processes of several children."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        start: Start = ChildProcess,
    ) -> None:
        super().__init__(command, environment, start)
        self._abandoned: list[ForkRequest] = []

    def fork(self, command: Sequence[str]) -> ForkRequest | None:
        """Request a process with this command, immediately or when the server has loaded. None
        without a server."""
        if self._process is None or self.ended() is not None:
            return None
        request = ForkRequest(self._process, command)
        if request.failed:
            request.close()
            return None
        return request

    def forked(self, request: ForkRequest) -> ForkedProcess | None:
        """Return the process of a request, once it exists."""
        process = request.poll()
        if request.failed and self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_SECONDS)
        if process is not None:
            self._delay = FIRST_DELAY
            if self._process is not None and process.pid == self._process.pid:
                self._process.hand_over()  # It could not fork.
                self._process = None
        return process

    def abandon(self, request: ForkRequest) -> None:
        """Stop the process of a request that is not needed any more, once it exists."""
        self._abandoned.append(request)

    def stop(self) -> None:
        """See `Standby`. Forked processes continue."""
        super().stop()
        self.end_abandoned()
        while self._abandoned:
            self._abandoned.pop().close()

    def end_abandoned(self) -> None:
        """Stop the processes of abandoned requests that were created since the last call."""
        for request in list(self._abandoned):
            process = self.forked(request)
            if process is not None:
                process.kill()
                process.close()
            if process is not None or request.failed:
                request.close()
                self._abandoned.remove(request)


@dataclass(frozen=True)
class ForkedServices:
    """Services whose processes a fork server creates, and the server's command."""

    services: Collection[str]
    command: Sequence[str]
    kinds: Collection[str] = ()
    """Prefixes of the names of services that are added later, and are forked too."""


class ForkGroup:
    """The services of one fork server."""

    def __init__(
        self, forked: ForkedServices, environment: Mapping[str, str], start: Start = ChildProcess
    ) -> None:
        self.server = ForkServer(forked.command, environment, start)
        self._services, self._kinds = set(forked.services), forked.kinds

    def __contains__(self, service: str) -> bool:
        """Whether the server forks this service."""
        return service in self._services

    def add(self, service: str) -> bool:
        """Let an added service be forked too; False if it is of another kind."""
        if service.rpartition("-")[0] not in self._kinds:
            return False
        self._services.add(service)
        return True
