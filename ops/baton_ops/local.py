"""Supervise the services of one machine: start, notice a death, restart, drain.

A child is in one of three states:

    running --died--> waiting (back-off) --due--> running
       |
       +--told to leave--> gone

Nothing here knows what a service does; an exit code says whether a restart can help.
"""

from __future__ import annotations

import math
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from baton.logs import logger
from baton.service import EXIT_MODEL, EXIT_SETTINGS

TICK_SECONDS = 0.05
"""How often the children are looked at: a death is noticed within this time."""
FIRST_DELAY = 0.2
"""Seconds before the first restart; doubles with every death that follows soon."""
LONGEST_DELAY = 5.0
HEALTHY_SECONDS = 30.0
"""A child that has lived this long starts again with the first delay."""
LEAVE_SECONDS = 5.0
"""How long a service with nothing left to do may take to end."""
HOPELESS = (EXIT_SETTINGS, EXIT_MODEL)
"""Exit codes that mean: a restart cannot help."""

log = logger(__name__)


@dataclass
class Backoff:
    """The pause before each restart."""

    delay: float = FIRST_DELAY

    def after(self, lived: float) -> float:
        """The pause after a child that has lived for `lived` seconds."""
        if lived >= HEALTHY_SECONDS:
            self.delay = FIRST_DELAY
        pause = self.delay
        self.delay = min(2 * self.delay, LONGEST_DELAY)
        return pause


def describe(code: int) -> str:
    """How a process ended, in words: `code` as `subprocess` reports it."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Child:
    """One service process and its restarts."""

    def __init__(self, service: str, command: Sequence[str], environment: Mapping[str, str]):
        self.service = service
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        """The running process; None while it waits for its restart."""
        self._command, self._environment = list(command), dict(environment)
        self._backoff = Backoff()
        self._started = 0.0
        self._due = 0.0

    def start(self, now: float) -> None:
        """Start the process in a group of its own, so that Ctrl-C reaches the supervisor only."""
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, process_group=0
        )
        self._started = now

    def tick(self, now: float) -> int | None:
        """Notice a death or carry out a restart that is due. The exit code when it has died."""
        if self.process is None:
            if now >= self._due:
                self.restarts += 1
                self.start(now)
            return None
        code = self.process.poll()
        if code is None:
            return None
        pid = self.process.pid
        self.let_go()
        if code in HOPELESS:
            self._due = math.inf
            return code
        pause = self._backoff.after(now - self._started)
        self._due = now + pause
        log.warning("%s[%d] %s: restarting in %.1f s", self.service, pid, describe(code), pause)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def gone(self) -> bool:
        """True when no process is left. For a child that has been told to leave."""
        return self.process is None or self.process.poll() is not None

    def let_go(self) -> None:
        """Forget the dead process and close the leash."""
        process, self.process = self.process, None
        if process is not None and process.stdin is not None:
            process.wait()
            process.stdin.close()


class Supervisor:
    """All children. Life cycle: `start` once, `tick` often, `drain` or not, `kill` always."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        drain_seconds: float,
    ) -> None:
        self.children = {s: Child(s, c, environment) for s, c in commands.items()}
        self.verdict: tuple[str, int] | None = None
        """Service and exit code of the child whose restart cannot help."""
        self._drain_seconds = drain_seconds

    def start(self) -> None:
        """Start all children at once."""
        for child in self.children.values():
            child.start(time.monotonic())

    def tick(self, leaving: Collection[str] = ()) -> None:
        """Look after every child but those that have been told to leave."""
        for service, child in self.children.items():
            if service not in leaving:
                code = child.tick(time.monotonic())
                if code in HOPELESS:
                    self.verdict = (service, code)

    def restarts(self) -> int:
        """Restarts so far, all services together."""
        return sum(child.restarts for child in self.children.values())

    def drain(self, first: str = "gateway") -> None:
        """End in order: the one that takes new work first, so that the others can finish it."""
        if first in self.children:
            log.info("draining: no new requests, running ones may take %g s", self._drain_seconds)
            self._leave({first}, self._drain_seconds + LEAVE_SECONDS)
        self._leave(set(self.children), LEAVE_SECONDS)

    def _leave(self, leaving: set[str], seconds: float) -> None:
        for service in leaving:
            self.children[service].signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while not self._all_gone(leaving) and time.monotonic() < deadline:
            self.tick(leaving)
            time.sleep(TICK_SECONDS)
        for service in sorted(leaving):
            if not self.children[service].gone():
                log.warning("%s did not end within %g s: killing it", service, seconds)
                self.children[service].signal(signal.SIGKILL)
            self.children[service].let_go()

    def _all_gone(self, services: Collection[str]) -> bool:
        return all(self.children[service].gone() for service in services)

    def kill(self) -> None:
        """End whatever still runs, now."""
        for child in self.children.values():
            child.signal(signal.SIGKILL)
        for child in self.children.values():
            child.let_go()
