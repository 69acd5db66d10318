"""In-flight steps: steps that were sent to a worker and have no result yet.

    first_step: the last plan begins      next_step
                     |                        |
    in flight 4   5  6   7   8   9   10  11   12
              ^ runs     ^ a truncation cancels the steps from here on

A plan of several steps has one record per step. Results arrive in order, the oldest step first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from baton.errors import WireError
from baton_scheduler.slot_table import Ints

_COMMITTED = 2
"""Steps of a plan that cannot be truncated: the running one and the next."""


@dataclass(slots=True)
class InFlightStep:
    """Record of a step without a result, with the lease of each slot; used to apply its result."""

    step: int
    sent_at: float
    owners: Ints
    """Per slot: the lease that ran, 0 if none."""
    rows: Ints
    """Slots that ran."""
    ends: Ints
    """Per row: tokens whose KV is in pages after this step."""
    sampling: Ints
    """Slots that sample a token."""
    scoring: Ints
    """Slots that finish with this step without sampling."""
    wire: bytes
    """The rows as the plan's uint32 column."""
    num_tokens: int
    num_swapped: int = 0
    """Number of pages swapped in or out."""


class InFlightSteps:
    """The in-flight steps of one worker, oldest first, and the extent of its last plan."""

    def __init__(self) -> None:
        self._flights: deque[InFlightStep] = deque()
        self.next_step = 1
        self.first_step = 1
        """Number of the first step of the last plan."""
        self.truncated = False
        """A truncation of that plan was sent, and the worker has not yet reported its last step."""
        self.wasteful = False
        """Whether the plan runs sequences that have left the worker."""

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[InFlightStep]:
        return iter(self._flights)

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and bool(self) and self.first.step <= step < self.next_step

    @property
    def first(self) -> InFlightStep:
        """The oldest step; there must be one."""
        return self._flights[0]

    def pop(self) -> InFlightStep:
        """Remove and return the oldest step."""
        return self._flights.popleft()

    def add(self, plan: Iterable[InFlightStep]) -> None:
        """Record the steps of a plan."""
        self._flights.extend(plan)
        self.first_step, self.next_step = self.next_step, self._flights[-1].step + 1
        self.truncated = self.wasteful = False

    @property
    def can_truncate(self) -> bool:
        """True if truncating the last plan would cancel steps."""
        several_steps = bool(self) and self._flights[-1].step > self.first_step
        return several_steps and len(self) > _COMMITTED and not self.truncated

    def max_in_flight(self, depth: int) -> int:
        """Maximum number of steps in flight at which the next plan is made. While a truncation is
        pending, no plan is made behind it."""
        return min(depth, _COMMITTED) if self.truncated else depth

    def end(self, until: int) -> list[InFlightStep]:
        """End the last plan with step `until`. Returns the cancelled steps, latest first.

        Raises `WireError` if `until` is not a step of this plan.
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
        """True if an in-flight step runs this lease of a slot."""
        return any(flight.owners[slot] == grant for flight in self)
