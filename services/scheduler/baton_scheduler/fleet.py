"""The workers that the state knows, what each of them runs, and which one takes a sequence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from baton.protocol import WorkerInfo
from baton_scheduler.batch import Batch, Ints
from baton_scheduler.meter import Meter
from baton_scheduler.pages import PagePool
from baton_scheduler.request import Sequence

_REMEMBERED = 256
"""Departed workers whose epoch is kept, so that it is not granted again."""


_SIMILAR = 0.25
"""Share of a worker's rows by which its load may exceed the least for the sake of a prefix."""


@dataclass(slots=True)
class Flight:
    """A plan without a result yet: who was in which slot. Its result is settled through this."""

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
    caching: bool = True
    """Pages are kept for later sequences with the same beginning."""
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
            and self._missing_pages(sequence) + reserve <= self.pool.num_free
        )

    def _missing_pages(self, sequence: Sequence) -> int:
        """How many of the pages that can be taken a sequence would need."""
        shared = sum(self.pool.references(page) > 0 for page in self.known_pages(sequence))
        return self.num_pages(sequence.num_tokens) - shared

    def known_pages(self, sequence: Sequence) -> list[int]:
        """Pages that hold the longest known prefix of a sequence, less its last token."""
        if not self.caching:
            return []
        size = self.info.page_size
        return self.pool.match(sequence.chain(size), sequence.reusable // size)

    def yielding(
        self, sequence: Sequence, outranks: Callable[[Sequence, Sequence], bool]
    ) -> list[int]:
        """The fewest slots, from the last in the order of service, whose sequences it outranks and
        without which it could start; empty when that is not enough."""
        batch, slots = self.batch, self.batch.occupied()
        if self.draining or not self.fits(sequence):
            return []
        known = set(self.known_pages(sequence))
        free, backlog = self.pool.num_free, batch.backlog
        needed = self._missing_pages(sequence)
        slots.sort(key=lambda slot: batch.at(slot).key, reverse=True)
        for number, slot in enumerate(slots, start=1):
            if not outranks(sequence, batch.at(slot)):
                break
            own = (page for page in batch.pages[slot] if page not in known)
            free += sum(self.pool.references(page) == 1 for page in own)
            backlog -= max(0, int(batch.known[slot] - batch.planned[slot]))
            if backlog < self.budget and needed + len(slots) - number <= free:
                return slots[:number]
        return []

    def place(self, sequence: Sequence, gateway: int) -> int:
        """Start a sequence: a slot, and pages for all its known tokens, known ones first.

        Returns how many tokens of it are in known pages.
        """
        known = self.known_pages(sequence)
        self.pool.share(known)
        pages = known + self.pool.take(self.num_pages(sequence.num_tokens) - len(known))
        page_size, max_length = self.info.page_size, self.max_length
        hit = len(known) * page_size
        if sequence.cached is None:
            sequence.cached = min(hit, sequence.num_prompt)
        slot = self.batch.add(sequence, gateway, pages, page_size, max_length, hit)
        sequence.place(self.name, slot)
        return hit

    def evict(self, slot: int, *, broken: bool = False) -> Sequence:
        """Stop a sequence: its slot and pages are free at once, its log is kept.

        Of a broken one nobody reuses anything.
        """
        sequence, pages = self.batch.remove(slot)
        if broken:
            self.pool.disown(pages)
        self.pool.give(pages)
        sequence.leave()
        return sequence

    def learn(self, slots: Ints, ends: Ints) -> None:
        """The keys of these slots are in pages up to these positions: name the full ones."""
        if not self.caching:
            return
        size, named = self.info.page_size, self.batch.named
        full = ends // size
        fresh = full > named[slots]
        for slot, count in zip(slots[fresh].tolist(), full[fresh].tolist(), strict=True):
            chain, pages = self.batch.at(slot).chain(size), self.batch.pages[slot]
            for block in range(int(named[slot]), count):
                self.pool.name(pages[block], chain.at(block))
            named[slot] = count

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
        """Assert that sequences hold exactly the held pages, and share only full, named ones."""
        self.pool.check()
        self.batch.check()
        slots = self.batch.occupied()
        held = Counter(page for slot in slots for page in self.batch.pages[slot])
        assert len(held) == self.pool.num_held
        assert all(self.pool.references(page) == count for page, count in held.items())
        for slot in slots:
            writable = self.batch.pages[slot][int(self.batch.named[slot]) :]
            assert all(held[page] == 1 for page in writable), "a shared page may be written"


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

    def join(
        self,
        name: str,
        epoch: int,
        info: WorkerInfo,
        max_batch_tokens: int,
        *,
        caching: bool = True,
    ) -> None:
        """Take a worker in, with an epoch that `refuses` does not name."""
        assert name not in self._workers and not self.refuses(name, epoch)
        self._workers[name] = Worker(
            name=name,
            epoch=epoch,
            info=info,
            budget=min(max_batch_tokens, info.max_batch_tokens),
            pool=PagePool(info.num_pages),
            batch=Batch(info.max_rows),
            caching=caching,
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
        """A worker that can start the sequence now: of those with about the least load, the one
        that knows the longest prefix of it."""
        able = [w for w in self if w.fits(sequence) and w.has_room(sequence)]
        if len(able) < 2:
            return able[0] if able else None
        least = min(worker.load[0] for worker in able)
        near = [worker for worker in able if worker.load[0] <= least + _SIMILAR]
        return min(near, key=lambda w: (-len(w.known_pages(sequence)) * w.info.page_size, w.load))
