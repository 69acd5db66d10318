"""One service process: its start, exit, restart and spare.

A child is in one of three states:

    running --exited--> waiting (no delay, or a back-off) --due--> running
       |
       +--retired--> removed

A child may have a spare: a second process that has loaded everything and waits
(`baton.process.standby`). A restart then takes a line to the spare instead of seconds of imports
and loading. The next spare is started once the new process has been up for a while.

A child that stays stopped (SIGSTOP) or whose main loop hangs is killed and restarted, since its
peers cannot detect this. It has exited before its successor starts, so the two never overlap.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.logs import logger
from baton.process.lifecycle import EXIT_MODEL, EXIT_SETTINGS
from baton_ops.supervisor.liveness import HangDetector, probe
from baton_ops.supervisor.process_state import StopDetector
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkRequest
from baton_ops.supervisor.processes.preloaded_interpreter import Process, Start
from baton_ops.supervisor.spare import ForkServer, Spare

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
        self.on_death: Callable[[int, int], None] = ignore_death
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


def ignore_death(pid: int, code: int) -> None:
    """Discard the event."""
