"""Standby processes of the supervisor's children (`baton.process.standby`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from baton.process import standby
from baton_ops.supervisor.child_process import ChildProcess

FIRST_DELAY = 5.0
"""Pause in seconds before a spare that has ended by itself is started again; doubles each time."""
LONGEST_DELAY = 300.0
"""Loading takes cores from the others."""


class Spare:
    """A standby process. Life cycle: `prepare` often, `call` or `dismiss` once."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        self._command, self._environment = list(command), dict(environment)
        self._process: ChildProcess | None = None
        self._due, self._delay = 0.0, FIRST_DELAY

    def prepare(self, now: float, replaced: int) -> None:
        """Start the process if there is none. After an early exit, the next attempt is delayed.

        `replaced`: process id that it is to stand in for.
        """
        if self._process is not None and self._process.poll() is not None:
            self._process.close()
            self._process, self._due = None, now + self._delay
            self._delay = min(2 * self._delay, LONGEST_DELAY)
        if self._process is None and now >= self._due:
            environment = {**self._environment, standby.REPLACED: str(replaced)}
            self._process = ChildProcess(self._command, environment)

    def call(self, command: Sequence[str]) -> ChildProcess | None:
        """Activate the process in place of one with this command, and return it. None when there
        is none."""
        process, self._process = self._process, None
        if process is None or process.call(command):
            self._delay = FIRST_DELAY
            return process
        process.close()  # it has died since the last check
        return None

    def dismiss(self) -> None:
        """Stop the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.close()


@dataclass(frozen=True)
class SharedSpare:
    """A standby process that several services share; it is started once all of them run."""

    services: Collection[str]
    command: Sequence[str]
