"""Supervises the services of one machine: start, monitoring, restart, drain.

A child is in one of three states:

    running --exited--> waiting (no delay, or a back-off) --due--> running
       |
       +--retired--> removed

A child may have a spare: a second process that has loaded everything and waits
(`baton.process.standby`). A restart then takes a line to the spare instead of seconds of imports
and loading. The next spare is started once the new process has been up for a while.

Several children may have a fork server instead of spares: it starts with them, loads once, and
forks all of their processes, also of children that are added later. Without it, they start by
themselves.

A child that stays stopped (SIGSTOP) or whose main loop hangs is killed and restarted, since its
peers cannot detect this. It has exited before its successor starts, so the two never overlap.

The supervisor knows nothing about the services; the exit code shows whether a restart can help.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from baton.logs import logger
from baton.process.lifecycle import EXIT_MODEL, EXIT_SETTINGS
from baton_ops.supervisor.liveness import HangDetector, probe
from baton_ops.supervisor.process_state import StopDetector
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkRequest
from baton_ops.supervisor.processes.preloaded_interpreter import Process, Start
from baton_ops.supervisor.spare import ForkedServices, ForkGroup, ForkServer, Spare

TICK_SECONDS = 0.05
"""Interval in seconds of checks, and the longest delay until an exit is noticed."""
FIRST_DELAY = 0.2
"""First delay in seconds before a child that just restarted is restarted again; doubles each
time."""
LONGEST_DELAY = 5.0
HEALTHY_SECONDS = 2.0
"""Uptime in seconds after which a child is restarted without delay."""
SPARE_SECONDS = 1.0
"""Uptime in seconds before a child gets a spare, so that the spare does not slow its start. An exit
before that costs a cold start."""
FIRST_SPARE_SECONDS = 3.0
"""The same at the first start, when all children start at once."""
LEAVE_SECONDS = 5.0
"""Seconds that an idle service may take to exit."""
NO_RESTART_CODES = (EXIT_SETTINGS, EXIT_MODEL)
"""Exit codes that rule out a restart."""

log = logger(__name__)


@dataclass
class Backoff:
    """Delay before each restart: none after the first exit or after good health."""

    delay: float = 0.0

    def after(self, uptime: float) -> float:
        """Return the delay after a child that has been up for `uptime` seconds."""
        if uptime >= HEALTHY_SECONDS:
            self.delay = 0.0
        pause = self.delay
        self.delay = min(max(2 * self.delay, FIRST_DELAY), LONGEST_DELAY)
        return pause


def describe(code: int) -> str:
    """Describe the exit code of a process, as reported by `subprocess`."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@dataclass(frozen=True)
class InactivityLimits:
    """Time in seconds that a child may be inactive before it is killed."""

    stopped: float = math.inf
    """Stopped by a signal."""
    hung: float = math.inf
    """Running, but with a hung main loop."""


class Child:
    """One service process with its restarts and optional spare."""

    def __init__(
        self,
        service: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        spare: Spare | None = None,
        limits: InactivityLimits | None = None,
        fork_server: ForkServer | None = None,
        loads_long: bool = False,
        start: Start = ChildProcess,
    ) -> None:
        """Without `limits`, inactivity is never checked. The spare of a child that `loads_long` is
        started once its main loop has reported, not during its start."""
        self._start_process = start
        self.service = service
        self.restarts = 0
        self.process: Process | None = None
        """The running process; None while it waits for its restart, or for the fork server."""
        self.on_death: Callable[[int, int], None] = _ignore
        """Called with the process id and the exit code."""
        self.added_later = False
        """Whether it was added after the start: the system serves without it."""
        self.command, self._environment = list(command), dict(environment)
        """Command of the next start."""
        self._spare, self._fork_server = spare, fork_server
        self._fork: ForkRequest | None = None
        self._loads_long = loads_long
        limits = limits or InactivityLimits()
        self._stop_detector = StopDetector(limits.stopped)
        self._hang_detector = HangDetector(limits.hung)
        self._backoff = Backoff()
        self._started = 0.0
        self._restart_at = 0.0

    def start(self, now: float) -> None:
        """Request a fork or activate the spare; without them, start a process."""
        self._started = now
        if self._fork_server is not None:
            self._fork = self._fork_server.fork(self.command)
        if self._spare is not None:
            self.process = self._spare.call(self.command)
        if self._fork is None and self.process is None:
            self.process = self._start_process(self.command, self._environment)

    @property
    def awaits_first_fork(self) -> bool:
        """Whether it has waited for the fork server since the system's start."""
        return self._fork is not None and self.restarts == 0 and not self.added_later

    def _take_fork(self, now: float) -> None:
        """Take the requested process, once it exists. If the server has exited meanwhile, start one
        without it, if that can help."""
        if self._fork is None or self._fork_server is None:
            return
        self.process = self._fork_server.forked(self._fork)
        unrecoverable = self.awaits_first_fork and self._fork_server.ended() in NO_RESTART_CODES
        if self._fork.failed and not unrecoverable:
            self._fork.close()
            self.process = self._start_process(self.command, self._environment)
        if self.process is not None:
            self._fork, self._started = None, now

    def tick(self, now: float) -> int | None:
        """Check for an exit, or perform a restart that is due. Returns the exit code after an
        exit."""
        self._take_fork(now)
        self._kill_if_inactive(now)
        code = self._check_exit(now)
        if self.process is None and self._fork is None and now >= self._restart_at:
            self.restarts += 1
            self.start(now)
        ready = self.serves(now) if self._loads_long else self._settled(now)
        if self._spare is not None and self.process is not None and ready:
            self._spare.prepare(now, self.process.pid)
        return code

    def _settled(self, now: float) -> bool:
        settled = SPARE_SECONDS if self.restarts else FIRST_SPARE_SECONDS
        return self.process is not None and now - self._started > settled

    def serves(self, now: float) -> bool:
        """Whether it has been up for a while, and its main loop has reported."""
        return self._settled(now) and self._hang_detector.has_reported

    def _kill_if_inactive(self, now: float) -> None:
        """Kill the process when it has been inactive for too long."""
        if self.process is None:
            return
        pid, why = self.process.pid, ""
        if self._stop_detector.exceeded(pid, now):
            why = "is stopped"
        elif self._hang_detector.exceeded(self.process.has_reported(), probe(pid), now):
            why = "hangs: its main loop makes no progress"
        if why:
            log.warning("%s[%d] %s: killing it", self.service, pid, why)
            self.process.kill()
            self._forget()

    def _forget(self) -> None:
        """Reset the detectors for the next process."""
        self._stop_detector.forget()
        self._hang_detector.forget()

    def _check_exit(self, now: float) -> int | None:
        code = None if self.process is None else self.process.poll()
        if self.process is None or code is None:
            return None
        pid = self.process.pid
        self.on_death(pid, code)
        self.release()
        if code in NO_RESTART_CODES:
            self._restart_at = math.inf
            return code
        pause = self._backoff.after(now - self._started)
        self._restart_at = now + pause
        when = f"in {pause:.1f} s" if pause else "at once"
        log.warning("%s[%d] %s: restarting %s", self.service, pid, describe(code), when)
        return code

    def disable_restart(self) -> None:
        """Rule out restarts, and stop its spare."""
        if self._spare is not None:
            self._spare.stop()
            self._spare = None
        if self._fork is not None and self._fork_server is not None:
            self._fork_server.abandon(self._fork)
            self._fork = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def has_ended(self) -> bool:
        """True when no process is left. For a retired child."""
        return self.process is None or self.process.poll() is not None

    def release(self) -> None:
        """Close and drop the exited process."""
        process, self.process = self.process, None
        self._forget()
        if process is not None:
            process.close()


def _ignore(pid: int, code: int) -> None:
    """Discard the event."""


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
        self._on_death: Callable[[int, int], None] = _ignore
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
