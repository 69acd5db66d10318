"""Steps that a worker was told to run, as long as they have no result.

    first_step: the last plan begins      next_step
                     |                        |
    flights   4   5  6   7   8   9   10  11   12
              ^ runs     ^ a cut spares what lies behind

A plan of several steps is so many flights. Results come in order, so the oldest is the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from baton.errors import WireError
from baton_scheduler.slot_table import Ints

_COMMITTED = 2
"""Steps of a plan that a cut does not spare: the one that runs, and the next."""


@dataclass(slots=True)
class InFlightStep:
    """A step without a result yet: who was in which slot. Its result is settled through this."""

    step: int
    sent: float
    owners: Ints
    """Per slot: the grant that ran, 0 where none did."""
    rows: Ints
    """Slots that ran."""
    ends: Ints
    """Per row: tokens of the sequence whose keys are in pages after this step."""
    sampling: Ints
    """Slots that must sample a token."""
    scoring: Ints
    """Slots that end with this step without sampling."""
    wire: bytes
    """The rows as the plan says them."""
    num_tokens: int
    num_swapped: int = 0
    """Pages that go to host memory or come back."""


class InFlightSteps:
    """The steps in flight of one worker, the oldest first, and where its last plan ends."""

    def __init__(self) -> None:
        self._flights: deque[InFlightStep] = deque()
        self.next_step = 1
        self.first_step = 1
        """Of the plan that was sent last."""
        self.truncated = False
        """That plan is to end early, and the worker has not said yet when."""
        self.wasteful = False
        """That plan runs sequences that are not wanted there any more."""

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[InFlightStep]:
        return iter(self._flights)

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and bool(self) and self.first.step <= step < self.next_step

    @property
    def first(self) -> InFlightStep:
        """The oldest; there must be one."""
        return self._flights[0]

    def pop(self) -> InFlightStep:
        """Take the oldest off the record."""
        return self._flights.popleft()

    def add(self, plan: Iterable[InFlightStep]) -> None:
        """Put a plan on record, step by step."""
        self._flights.extend(plan)
        self.first_step, self.next_step = self.next_step, self._flights[-1].step + 1
        self.truncated = self.wasteful = False

    @property
    def can_truncate(self) -> bool:
        """To cut the last plan would spare steps: the worker runs one, and begins another."""
        many = bool(self) and self._flights[-1].step > self.first_step
        return many and len(self) > _COMMITTED and not self.truncated

    def patience(self, depth: int) -> int:
        """How many steps may be in flight when the next is planned. While it is open where the
        last plan ends, none is planned behind an end that may yet be moved."""
        return min(depth, _COMMITTED) if self.truncated else depth

    def end(self, until: int) -> list[InFlightStep]:
        """The last plan ends with step `until`. Returns what that spares, the latest first.

        Raises `WireError` when the worker cannot have meant this plan.
        """
        if not self.first_step <= until < self.next_step:
            raise WireError(f"a plan from step {self.first_step} cannot end with step {until}")
        spared = list[InFlightStep]()
        while self and self._flights[-1].step > until:
            spared.append(self._flights.pop())
        self.next_step = until + 1
        self.truncated = self.wasteful = False
        return spared

    def run(self, slot: int, grant: int) -> bool:
        """Whether one of them runs what has this grant of a slot."""
        return any(flight.owners[slot] == grant for flight in self)
