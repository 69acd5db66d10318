"""Fair queueing between tenants by token cost.

The virtual token counter (VTC: Sheng et al. 2024, arXiv:2401.00588): every tenant has a counter of
the service it received, divided by its weight; the waiting tenant with the lowest counter is next.
A tenant that returns after a pause is lifted to the counters of the waiting ones, so no tenant can
save up service.

    counter += (prompt tokens computed + 2 * tokens sampled) / weight

Counters only decide which sequence starts next. Started sequences keep their order: if it changed
while they run, two could preempt each other forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np

from baton_scheduler.queueing.queue import Queue
from baton_scheduler.sequence import Key, Sequence
from baton_scheduler.slot_table import Ints

PROMPT_COST, SAMPLED_COST = 1.0, 2.0
"""Cost per token, as in the paper: prompt tokens are computed in parallel."""
_MOST_ACCOUNTS = 8192
"""Maximum number of remembered tenants. The lowest counters are dropped first, since a lift would
raise them anyway."""


@dataclass(slots=True)
class TenantAccount:
    """Counter and waiting sequences of a tenant."""

    number: int
    weight: float
    counter: float = 0.0
    waiting: dict[int, Sequence] = field(default_factory=dict)
    """Arrival -> sequence that has never run."""

    @property
    def first(self) -> Sequence | None:
        """Next sequence among them."""
        return next((sequence for sequence in self.waiting.values() if not sequence.waits), None)


class Fair(Queue):
    """Started sequences in order of their start, then tenants by counter, then the background."""

    def __init__(
        self, weights: Mapping[str, float] | None = None, numbers: Iterator[int] | None = None
    ) -> None:
        super().__init__()
        self._weights = weights or {}
        self._new_numbers = numbers or count(1)
        self._accounts: dict[str, TenantAccount] = {}
        self._waiting: dict[int, TenantAccount] = {}
        """Accounts with waiting sequences, by number."""
        self._numbers: dict[int, TenantAccount] = {}
        self._last = 0.0
        """Counter of the account that stopped waiting last."""
        self._started = 0

    def __len__(self) -> int:
        return len(self._items) + sum(len(a.waiting) for a in self._waiting.values())

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._items
        for account in self._waiting.values():
            yield from account.waiting.values()

    @property
    def head(self) -> Sequence | None:
        """The first started sequence, else the first of the tenant with the lowest counter, else
        the first background sequence."""
        first = super().head
        if first is not None and not first.is_background:
            return first
        firsts = ((a, a.first) for a in self._waiting.values())
        able = [(a.counter, a.number, first) for a, first in firsts if first is not None]
        return min(able)[2] if able else first

    def key(self, sequence: Sequence) -> Key:
        """Behind all started sequences; a background sequence behind all others too."""
        return (2 if sequence.is_background else 1, sequence.arrival)

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence, under its tenant if it has never run."""
        if sequence.key[0] != 1:
            super().push(sequence)
            return
        account = self._account(sequence.submit.tenant)
        if account.number not in self._waiting:
            others = [a.counter for a in self._waiting.values()]
            account.counter = max(account.counter, min(others, default=self._last))
            self._waiting[account.number] = account
        sequence.billed_tenant = account.number
        account.waiting[sequence.arrival] = sequence
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence."""
        if sequence.key[0] != 1:
            super().remove(sequence)
            return
        account = self._waiting[sequence.billed_tenant]
        del account.waiting[sequence.arrival]
        if not account.waiting:
            del self._waiting[account.number]
            self._last = account.counter
        self._count(sequence, -1)

    def started(self, sequence: Sequence) -> None:
        """Assign a permanent position among started sequences, except to a background sequence."""
        if sequence.is_background:
            return
        self._started += 1
        sequence.key = (0, self._started)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Charge a prompt."""
        self._add(sequence.billed_tenant, PROMPT_COST * num_tokens)

    def sampled(self, tenants: Ints) -> None:
        """Charge the tokens of a step."""
        numbers, counts = np.unique(tenants, return_counts=True)
        for number, sampled in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._add(number, SAMPLED_COST * sampled)

    def ahead(self, sequence: Sequence) -> tuple[int, int]:
        """All started sequences, and of every tenant about as many as of its own."""
        items = [other for other in self._items if other.key < sequence.key]
        number, tokens = len(items), sum(other.num_tokens for other in items)
        mine = self._accounts.get(sequence.submit.tenant)
        turns = 1 + (len(mine.waiting) if mine is not None else 0)
        for account in self._waiting.values():
            most = len(account.waiting) if account is mine else min(turns, len(account.waiting))
            first = islice(account.waiting.values(), most)
            number, tokens = number + most, tokens + sum(other.num_tokens for other in first)
        return number, tokens

    def layout(self) -> bytes:
        """The queue and the counters."""
        counters = [(a.number, a.counter) for a in self._numbers.values()]
        return super().layout() + repr((counters, self._last, self._started)).encode()

    def _add(self, number: int, cost: float) -> None:
        account = self._numbers.get(number)
        if account is not None:
            account.counter += cost / account.weight

    def _account(self, tenant: str) -> TenantAccount:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                self._prune()
            number = next(self._new_numbers)
            account = TenantAccount(number, self._weights.get(tenant, 1.0))
            self._accounts[tenant] = self._numbers[account.number] = account
        return account

    def _prune(self) -> None:
        """Drop half of the accounts without waiting sequences."""
        idle = [(a.counter, a.number, name) for name, a in self._accounts.items() if not a.waiting]
        for _, number, name in sorted(idle)[: (len(idle) + 1) // 2]:
            del self._accounts[name], self._numbers[number]
