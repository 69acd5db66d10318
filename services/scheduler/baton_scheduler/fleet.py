"""The workers that the state knows, what each of them runs, and which one takes a sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from baton.protocol import WorkerInfo
from baton_scheduler.batch import Batch, Ints
from baton_scheduler.meter import Meter
from baton_scheduler.pages import PagePool
from baton_scheduler.request import Sequence

_REMEMBERED = 256
"""Departed workers whose epoch is kept, so that it is not granted again."""


@dataclass(slots=True)
class Flight:
    """A plan without a result yet: who was in which slot. Its result is settled through this."""

    step: int
    sent: float
    owners: Ints
    """Per slot: the grant that ran, 0 where none did."""
    sampling: Ints
    """Slots that must sample a token."""
    scoring: Ints
    """Slots that end with this step without sampling."""
    num_tokens: int


@dataclass(slots=True)
class Worker:
    """One worker: its pages, its slots, its plans in flight."""

    name: str
    epoch: int
    info: WorkerInfo
    budget: int
    """Most new tokens in one step."""
    pool: PagePool
    batch: Batch
    next_step: int = 1
    draining: bool = False
    flights: deque[Flight] = field(default_factory=deque)
    settled: float = 0.0
    """When its last result was settled."""
    steps: int = 0
    step_ms: float = 0.0
    tokens: Meter = field(default_factory=Meter)

    @property
    def max_length(self) -> int:
        """Longest sequence that fits here when it is alone."""
        return min(self.info.max_length, self.info.num_pages * self.info.page_size)

    @property
    def max_running(self) -> int:
        """Every running sequence decodes in every step, so there are never more than the budget."""
        return min(self.info.max_rows, self.budget)

    @property
    def waiting_since(self) -> float | None:
        """Since when the worker owes a result; None when it owes none."""
        return max(self.flights[0].sent, self.settled) if self.flights else None

    @property
    def load(self) -> tuple[float, int, str]:
        """Lower is better for a new sequence."""
        return (len(self.batch) / self.max_running, -self.pool.num_free, self.name)

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold the keys of so many tokens."""
        return -(-num_tokens // self.info.page_size)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence and one more token could ever run here."""
        return sequence.num_tokens + (not sequence.scores_only) <= self.max_length

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the sequence can start now.

        One free page stays for every running sequence, so that a newcomer is not preempted
        before it has run for a while; and no more prompts are taken than one step can begin.
        """
        reserve = len(self.batch)
        return (
            not self.draining
            and len(self.batch) < self.max_running
            and self.batch.backlog < self.budget
            and self.num_pages(sequence.num_tokens) + reserve <= self.pool.num_free
        )

    def place(self, sequence: Sequence, gateway: int) -> None:
        """Start a sequence: a slot, and pages for all its known tokens."""
        pages = self.pool.take(self.num_pages(sequence.num_tokens))
        page_size, max_length = self.info.page_size, self.max_length
        slot = self.batch.add(sequence, gateway, pages, page_size, max_length)
        sequence.place(self.name, slot)

    def evict(self, slot: int) -> Sequence:
        """Stop a sequence: its slot and pages are free at once, its log is kept."""
        sequence, pages = self.batch.remove(slot)
        self.pool.give(pages)
        sequence.leave()
        return sequence

    def grow(self, slot: int) -> list[int]:
        """Give a sequence its next page."""
        pages = self.pool.take(1)
        self.batch.pages[slot] += pages
        self.batch.capacity[slot] += self.info.page_size
        return pages

    def note(self, flight: Flight, num_sampled: int, duration_us: int, now: float) -> None:
        """Count a step whose result has come. One that only released says nothing about speed."""
        self.steps += 1
        self.settled = now
        self.tokens.add(num_sampled)
        if flight.num_tokens:
            latest = duration_us / 1000
            self.step_ms = 0.9 * self.step_ms + 0.1 * latest if self.step_ms else latest

    def check(self) -> None:
        """Assert that sequences hold exactly the held pages, and no page twice."""
        self.pool.check()
        self.batch.check()
        pages = [page for slot in self.batch.occupied() for page in self.batch.pages[slot]]
        assert len(pages) == len(set(pages)) == self.pool.num_held


class Fleet:
    """Workers by name."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._departed: dict[str, int] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, name: object) -> bool:
        return name in self._workers

    def get(self, name: str | None) -> Worker | None:
        """The worker of that name, if it is here."""
        return None if name is None else self._workers.get(name)

    def join(self, name: str, epoch: int, info: WorkerInfo, max_batch_tokens: int) -> None:
        """Take a worker in, with an epoch that `refuses` does not name."""
        assert name not in self._workers and not self.refuses(name, epoch)
        self._workers[name] = Worker(
            name=name,
            epoch=epoch,
            info=info,
            budget=min(max_batch_tokens, info.max_batch_tokens),
            pool=PagePool(info.num_pages),
            batch=Batch(info.max_rows),
        )

    def leave(self, name: str) -> Worker | None:
        """Forget a worker and return it."""
        worker = self._workers.pop(name, None)
        if worker is not None and worker.next_step > 1:
            self._departed[name] = worker.epoch
            if len(self._departed) > _REMEMBERED:
                del self._departed[next(iter(self._departed))]
        return worker

    def refuses(self, name: str, epoch: int) -> bool:
        """Whether this epoch was given plans and then given up.

        Such a worker may still hold sequences and run old plans; it starts from nothing, in a new
        epoch, or not at all.
        """
        return self._departed.get(name) == epoch

    @property
    def open(self) -> bool:
        """Some worker takes new sequences."""
        return any(not worker.draining for worker in self)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could ever run on some worker."""
        return any(worker.fits(sequence) for worker in self if not worker.draining)

    @property
    def max_length(self) -> int:
        """Longest sequence that every worker can run; 0 without workers."""
        return min((worker.max_length for worker in self), default=0)

    def pick(self, sequence: Sequence) -> Worker | None:
        """The least loaded worker that can start the sequence now."""
        able = [w for w in self if w.fits(sequence) and w.has_room(sequence)]
        return min(able, key=lambda worker: worker.load, default=None)
