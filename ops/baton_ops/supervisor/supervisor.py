"""Supervises the services of one machine: start, monitoring, restart, drain. See `Child` for the
life of one.

Several children may have a fork server instead of spares: it starts with them, loads once, and
forks all of their processes, also of children that are added later. Without it, they start by
themselves.

The supervisor knows nothing about the services; the exit code shows whether a restart can help.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from baton.logs import logger
from baton_ops.supervisor.child import (
    NO_RESTART_CODES,
    Child,
    InactivityLimits,
    ignore_death,
)
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.preloaded_interpreter import Start
from baton_ops.supervisor.spare import ForkedServices, ForkGroup, Spare

TICK_SECONDS = 0.05
"""Interval in seconds of checks, and the longest delay until an exit is noticed."""
LEAVE_SECONDS = 5.0
"""Seconds that an idle service may take to exit."""

log = logger(__name__)


class Supervisor:
    """All children. Life cycle: `start` once, `tick` often, `drain` optionally, `kill` always."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        drain_seconds: float,
        spares: Mapping[str, Sequence[str]] | None = None,
        limits: Mapping[str, InactivityLimits] | None = None,
        forked: Sequence[ForkedServices] = (),
        loading: Collection[str] = (),
        start: Start = ChildProcess,
    ) -> None:
        """`spares`: command of the standby process, per service that has one of its own.

        `limits`: inactivity limits, per service that is checked.

        `forked`: services whose processes are forked, by the command of their fork server.

        `loading`: services that take long to load.

        `start`: how a process is started.
        """
        self._start = start
        standbys = {service: Spare(c, environment, start) for service, c in (spares or {}).items()}
        limits = limits or {}
        self._fork_groups = [ForkGroup(services, environment, start) for services in forked]
        self.children = {
            s: Child(
                s,
                c,
                environment,
                standbys.get(s),
                limits.get(s),
                next((group.server for group in self._fork_groups if s in group), None),
                s in loading,
                start,
            )
            for s, c in commands.items()
        }
        self.fatal_exit: tuple[str, int] | None = None
        """Service and exit code of a child that a restart cannot help; ends the supervisor."""
        self._drain_seconds = drain_seconds
        self._environment = environment
        self._on_death: Callable[[int, int], None] = ignore_death
        self._retired: dict[str, float] = {}
        """Retired children, and when they are killed."""

    def report_to(self, on_death: Callable[[int, int], None]) -> None:
        """Call `on_death` with the process id and exit code of every child that exits."""
        self._on_death = on_death
        for child in self.children.values():
            child.on_death = on_death

    def start(self) -> None:
        """Start all children; forked ones begin once their server has loaded."""
        for group in self._fork_groups:
            group.server.prepare(time.monotonic(), 0)
        for child in self.children.values():
            child.start(time.monotonic())

    def tick(self, leaving: Collection[str] = ()) -> None:
        """Check every child except those in `leaving`."""
        self.fatal_exit = self.fatal_exit or self._failed_fork_server()
        for service in self._retired.keys() - set(leaving):
            self._remove_retired(service)
        for service, child in list(self.children.items()):
            if service not in leaving and service not in self._retired:
                code = child.tick(time.monotonic())
                if code in NO_RESTART_CODES:
                    self._on_fatal_exit(service, code)
        for group in self._fork_groups:
            group.server.end_abandoned()
            self._prepare(group)

    def _prepare(self, group: ForkGroup) -> None:
        """Restart a fork server that has exited, once all its services run, so that it does not
        slow their start."""
        now = time.monotonic()
        forked = [child for service, child in self.children.items() if service in group]
        if forked and all(child.serves(now) for child in forked):
            assert forked[0].process is not None
            group.server.prepare(now, forked[0].process.pid)

    def _failed_fork_server(self) -> tuple[str, int] | None:
        """A service that never started because its fork server exited with a code that rules out a
        restart, and that code. If the server fails later, the services start without it."""
        for group in self._fork_groups:
            code = group.server.ended()
            for service, child in self.children.items():
                if code in NO_RESTART_CODES and service in group and child.awaits_first_fork:
                    return service, code
        return None

    def _stop_spares(self) -> None:
        """Stop all spares: nothing is restarted any more."""
        for child in self.children.values():
            child.disable_restart()
        while self._fork_groups:
            self._fork_groups.pop().server.stop()

    def _on_fatal_exit(self, service: str, code: int) -> None:
        """Handle a child that a restart cannot help."""
        if not self.children[service].added_later:
            self.fatal_exit = (service, code)
        else:
            log.error("%s cannot be started, see its message above: going on without", service)
            del self.children[service]

    def add(
        self,
        service: str,
        command: Sequence[str],
        spare: Sequence[str] | None = None,
        limits: InactivityLimits | None = None,
    ) -> None:
        """Add a child, which is supervised like the others. Its failure does not end them. `spare`:
        command of its standby process, if it has its own, because it takes long to load; `limits`:
        its inactivity limits, if it is checked."""
        group = next((group for group in self._fork_groups if group.add(service)), None)
        server = None if group is None else group.server
        standby = None if spare is None else Spare(spare, self._environment, self._start)
        child = Child(
            service, command, self._environment, standby, limits, server, True, self._start
        )
        self.children[service] = child
        child.on_death, child.added_later = self._on_death, True
        child.start(time.monotonic())

    def retire(self, service: str) -> None:
        """Stop a child. It is not restarted, and removed once it is gone."""
        child = self.children[service]
        child.disable_restart()
        child.signal(signal.SIGTERM)
        self._retired[service] = time.monotonic() + self._drain_seconds + LEAVE_SECONDS

    def _remove_retired(self, service: str) -> None:
        child = self.children[service]
        if time.monotonic() > self._retired[service]:
            log.warning("%s does not end: killing it", service)
            child.signal(signal.SIGKILL)
        if child.has_ended():
            child.release()
            del self.children[service], self._retired[service]

    def restarts(self) -> int:
        """Total number of restarts so far."""
        return sum(child.restarts for child in self.children.values())

    def drain(self, first: str = "gateway") -> None:
        """Stop in order: first the service that accepts new work, so that the others can finish
        it."""
        self._stop_spares()
        firsts = {name for name in self.children if re.fullmatch(rf"{first}(-\d+)?", name)}
        if firsts:
            log.info("draining: no new requests, running ones may take %g s", self._drain_seconds)
            self._leave(firsts, self._drain_seconds + LEAVE_SECONDS)
        self._leave(set(self.children), LEAVE_SECONDS)

    def _leave(self, leaving: set[str], seconds: float) -> None:
        for service in leaving:
            self.children[service].signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while not self._all_ended(leaving) and time.monotonic() < deadline:
            self.tick(leaving)
            time.sleep(TICK_SECONDS)
        for service in sorted(leaving):
            if not self.children[service].has_ended():
                log.warning("%s did not end within %g s: killing it", service, seconds)
                self.children[service].signal(signal.SIGKILL)
            self.children[service].release()

    def _all_ended(self, services: Collection[str]) -> bool:
        return all(self.children[service].has_ended() for service in services)

    def kill(self) -> None:
        """Kill all remaining processes."""
        self._stop_spares()
        for child in self.children.values():
            child.signal(signal.SIGKILL)
        for child in self.children.values():
            child.release()
