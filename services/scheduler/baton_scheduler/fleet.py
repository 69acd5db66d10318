"""The workers that the state knows, what each of them runs, and which one takes a sequence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from baton.errors import WireError
from baton.protocol import Result, WorkerInfo
from baton_scheduler.batch import Batch, Ints
from baton_scheduler.host import Host
from baton_scheduler.meter import Meter
from baton_scheduler.pace import Pace
from baton_scheduler.pages import PagePool
from baton_scheduler.request import Sequence

_REMEMBERED = 256
"""Departed workers whose epoch is kept, so that it is not granted again."""


_SIMILAR = 0.25
"""Share of a worker's rows by which its load may exceed the least for the sake of a prefix."""


_COMMITTED = 2
"""Steps of a plan that a cut does not spare: the one that runs, and the next."""


def _average(before: float, latest: float) -> float:
    return 0.9 * before + 0.1 * latest if before else latest


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
    num_swapped: int = 0
    """Pages that go to host memory or come back."""


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
    first_step: int = 1
    """Of the plan that was sent last."""
    cut: bool = False
    """That plan is to end early, and the worker has not said yet when."""
    wasteful: bool = False
    """That plan runs sequences that are not wanted there any more."""
    draining: bool = False
    flights: deque[Flight] = field(default_factory=deque)
    moving: dict[int, list[int]] = field(default_factory=dict)
    """Pages that transfers hold here, by the transfer's number: read from, or written to."""
    settled: float = 0.0
    """When its last result was settled."""
    steps: int = 0
    step_ms: float = 0.0
    gap_ms: float = 0.0
    """Moving average of the time that its device waits between two steps."""
    tokens: Meter = field(default_factory=Meter)
    pace: Pace = field(default_factory=Pace)
    """Tokens and seconds of steps."""
    swaps: Pace = field(default_factory=Pace)
    """Pages and seconds of swaps."""

    @property
    def max_length(self) -> int:
        """Longest sequence that fits here when it is alone."""
        return min(self.info.max_length, self.info.num_pages * self.info.page_size)

    @property
    def window(self) -> int:
        """How many of its last tokens a sequence sees here; 0 means all. A prefill worker keeps
        what it cannot see any more as well: it passes sequences on whole."""
        return 0 if self.info.role == "prefill" else self.info.window

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
        if sequence.whole and sequence.num_tokens > self.budget:
            return False
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

    def known_tokens(self, sequence: Sequence) -> int:
        """Tokens of the sequence that are in known pages."""
        return len(self.known_pages(sequence)) * self.info.page_size

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
        needed = self.num_pages(sequence.num_tokens) - len(known)
        hosted = self._hosted(sequence, len(known))
        blocks = len(known) + len(hosted)
        source, more = self._fork(sequence, blocks, needed)
        if more:
            self.pool.share([source])
        own = self.pool.take(needed)
        pages = known + own
        page_size, max_length = self.info.page_size, self.max_length
        hit = blocks * page_size + more
        if sequence.cached is None:
            sequence.cached = min(hit, sequence.num_prompt)
        slot = self.batch.add(sequence, gateway, pages, page_size, max_length, hit, len(known))
        if more:
            self.batch.sources[slot] = source
        if hosted:
            self.batch.incoming[slot] = list(zip(hosted, own, strict=False))
        sequence.place(self.name, slot)
        return hit

    def _hosted(self, sequence: Sequence, first: int) -> list[int]:
        """Host pages, pinned, that go on with a sequence behind its first blocks: if to bring them
        back is quicker than to compute them again, as far as was measured."""
        host, size = self.pool.host, self.info.page_size
        if host is None:
            return []
        pages = host.match(sequence.chain(size), first, sequence.reusable // size)
        measured = self.pace.known and self.swaps.known
        compute = self.pace.line[1] * len(pages) * size
        if measured and self.swaps.seconds(len(pages), 1) > compute:
            return []
        host.pin(pages)
        return pages

    def swaps_for(self, entering: list[int]) -> tuple[list[int], list[int]]:
        """(out, in): the pairs of pages to swap in this plan, each list flat."""
        host, incoming = self.pool.host, list[tuple[int, int]]()
        if host is None:
            return [], []
        for slot in entering:
            incoming += self.batch.incoming.pop(slot, [])
        host.unpin(source for source, _ in incoming)
        return host.outgoing(), [number for pair in incoming for number in pair]

    def _fork(self, sequence: Sequence, block: int, needed: int) -> tuple[int, int]:
        """(page, number): a page that begins like a block of the sequence and for how many tokens.

        (-1, 0) when there is none, or no page to spare: the source stays as it is until the copy
        is on its way, beside the `needed` pages of the sequence itself.
        """
        if not self.caching:
            return -1, 0
        size, chain = self.info.page_size, sequence.chain(self.info.page_size)
        end = min(sequence.reusable, (block + 1) * size)
        wanted = chain.content(block * size, end) if end > block * size else b""
        page, number = self.pool.index.fork(chain.at(block - 1), wanted)
        spare = self.pool.num_free - needed
        if not number or spare < (self.pool.references(page) == 0):
            return -1, 0
        return page, number

    def copies(self, entering: list[int]) -> tuple[list[int], list[int]]:
        """(sources, targets) of the pages to copy for slots that enter now, in this plan: those
        that come later may overwrite a source."""
        sources, targets = list[int](), list[int]()
        for slot in entering:
            source = self.batch.sources.pop(slot, None)
            if source is not None:
                self.pool.give([source])
                sources.append(source)
                own = (int(self.batch.hit[slot]) - 1) // self.info.page_size
                targets.append(self.batch.pages[slot][own])
        return sources, targets

    def evict(self, slot: int, *, broken: bool = False) -> Sequence:
        """Stop a sequence: its slot and pages are free at once, its log is kept.

        Of a broken one nobody reuses anything.
        """
        if not broken:
            self._keep_tail(slot)
        source = self.batch.sources.pop(slot, None)
        if source is not None:
            self.pool.give([source])
        incoming = self.batch.incoming.pop(slot, [])
        if self.pool.host is not None:
            self.pool.host.unpin(page for page, _ in incoming)
        sequence, pages = self.batch.remove(slot)
        if broken:
            self.pool.disown(pages)
        self.pool.give(pages)
        sequence.leave()
        return sequence

    def withdraw(self, slot: int) -> Sequence:
        """Stop a sequence that the worker would go on with."""
        self.wasteful = True
        return self.evict(slot)

    def _keep_tail(self, slot: int) -> None:
        """The last page of what was settled can be copied from now on, up to there."""
        size, end = self.info.page_size, int(self.batch.settled[slot])
        block = end // size
        if self.caching and end % size:
            chain = self.batch.at(slot).chain(size)
            page = self.batch.pages[slot][block - int(self.batch.dropped[slot])]
            self.pool.begin(page, chain.at(block - 1), chain.content(block * size, end))

    def learn(self, slots: Ints, ends: Ints) -> None:
        """The keys of these slots are in pages up to these positions: name the full ones."""
        self.batch.settled[slots] = ends
        if not self.caching:
            return
        size, named = self.info.page_size, self.batch.named
        full = ends // size
        fresh = full > named[slots]
        for slot, count in zip(slots[fresh].tolist(), full[fresh].tolist(), strict=True):
            self._name(slot, count)
            named[slot] = count
        for slot in slots[ends == self.batch.known[slots]].tolist():
            self._keep_tail(slot)
            self.batch.at(slot).begun = True

    def _name(self, slot: int, count: int) -> None:
        """Make the first `count` pages of a slot known, of which those before are."""
        size, pages = self.info.page_size, self.batch.pages[slot]
        chain, dropped = self.batch.at(slot).chain(size), int(self.batch.dropped[slot])
        for block in range(int(self.batch.named[slot]), count):
            page = pages[block - dropped]
            if self.pool.name(page, chain.at(block)):
                self.pool.begin(page, chain.at(block - 1), chain.block(block))

    def grow(self, slot: int, count: int = 1) -> list[int]:
        """Give a sequence its next pages."""
        pages = self.pool.take(count)
        self.batch.pages[slot] += pages
        self.batch.capacity[slot] += count * self.info.page_size
        return pages

    def shed(self) -> None:
        """Give back the pages that lie before every window to come.

        By what was settled, not by what is planned: no plan in flight sees such a page either, so
        anybody may write to it at once. And it has its name by then: whoever has the same prefix
        finds it until it makes room.
        """
        if not self.window:
            return
        batch, size = self.batch, self.info.page_size
        unseen = np.maximum(batch.settled - self.window, 0) // size
        for slot in np.flatnonzero(batch.entered & (unseen > batch.dropped)).tolist():
            self.pool.give(batch.drop(slot, int(unseen[slot] - batch.dropped[slot])))

    def lend(self, number: int, slot: int, length: int) -> list[int]:
        """Hold the pages of a slot's first tokens, all still there, for a transfer that reads
        them."""
        assert not self.batch.dropped[slot]
        pages = self.batch.pages[slot][: self.num_pages(length)]
        self.pool.share(pages)
        self.moving[number] = pages
        return pages

    def prepare(self, number: int, sequence: Sequence, length: int) -> list[int]:
        """Hold pages for a sequence's first tokens, known ones first: the others are written by
        a transfer."""
        known = self.known_pages(sequence)
        self.pool.share(known)
        pages = known + self.pool.take(self.num_pages(length) - len(known))
        self.moving[number] = pages
        return pages

    def adopt(self, sequence: Sequence, pages: list[int], start: int, end: int) -> None:
        """The keys of tokens start .. end - 1 are in these pages now: whoever has the same prefix
        finds them."""
        size, chain = self.info.page_size, sequence.chain(self.info.page_size)
        for block in range(start // size, self.num_pages(end)):
            last = min(end, (block + 1) * size)
            if last % size or self.pool.name(pages[block], chain.at(block)):
                content = chain.content(block * size, last)
                self.pool.begin(pages[block], chain.at(block - 1), content)

    def release(self, number: int) -> None:
        """A transfer has ended: it holds nothing any more."""
        self.pool.give(self.moving.pop(number))

    @property
    def severable(self) -> bool:
        """To cut its last plan would spare steps: it runs one, and begins another meanwhile."""
        many = bool(self.flights) and self.flights[-1].step > self.first_step
        return many and len(self.flights) > _COMMITTED and not self.cut

    def patience(self, depth: int) -> int:
        """How many steps may be in flight when the next is planned. While it is open where the
        last plan ends, none is planned behind an end that may yet be moved."""
        return min(depth, _COMMITTED) if self.cut else depth

    def shorten(self, until: int) -> None:
        """The last plan ends with step `until`: rows stand where they did before what it spares.

        Raises `WireError` when the worker cannot have meant this plan.
        """
        if not self.first_step <= until < self.next_step:
            raise WireError(f"a plan from step {self.first_step} cannot end with step {until}")
        batch = self.batch
        while self.flights and self.flights[-1].step > until:
            flight = self.flights.pop()
            rows = flight.rows[flight.owners[flight.rows] == batch.grant[flight.rows]]
            batch.planned[rows] -= 1
        self.next_step = until + 1
        self.cut = self.wasteful = False

    def seconds(self, num_tokens: int) -> float | None:
        """When a prompt would have its first token here if it and what is before it in the queue
        had so many tokens together, and slots and pages enough; None before any was measured."""
        if not self.pace.known:
            return None
        tokens = self.batch.backlog + num_tokens
        room = max(1, self.budget - len(self.batch))
        steps = -(-tokens // room) + len(self.flights)
        return self.pace.seconds(tokens + steps * len(self.batch), steps)

    def note(self, flight: Flight, num_sampled: int, result: Result, now: float) -> None:
        """Count a step whose result has come. One that only released says nothing about speed."""
        self.steps += 1
        self.settled = now
        self.tokens.add(num_sampled)
        if flight.num_tokens:
            self.step_ms = _average(self.step_ms, result.duration_us / 1000)
            self.pace.add(flight.num_tokens, (result.duration_us - result.swap_us) / 1e6)
            self.gap_ms = _average(self.gap_ms, result.gap_us / 1000)
        if flight.num_swapped:
            self.swaps.add(flight.num_swapped, result.swap_us / 1e6)

    def check(self) -> None:
        """Assert that sequences hold exactly the held pages, and share only full, named ones."""
        self.pool.check()
        self.batch.check()
        slots = self.batch.occupied()
        tables = Counter(page for slot in slots for page in self.batch.pages[slot])
        lent = Counter(page for pages in self.moving.values() for page in pages)
        held = tables + lent + Counter(self.batch.sources.values())
        assert len(held) == self.pool.num_held
        assert all(self.pool.references(page) == count for page, count in held.items())
        for slot in slots:
            pages, dropped = self.batch.pages[slot], int(self.batch.dropped[slot])
            assert (dropped + len(pages)) * self.info.page_size == self.batch.capacity[slot]
            writable = pages[max(0, int(self.batch.named[slot]) - dropped) :]
            assert all(tables[page] == 1 for page in writable), "a shared page may be written"
        for slot, source in self.batch.sources.items():
            assert not self.batch.entered[slot] and source in self.pool.index
            assert source not in self.batch.pages[slot], "a page is copied to itself"


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
        encodes = _only_encodes(info)
        self._workers[name] = Worker(
            name=name,
            epoch=epoch,
            info=info,
            budget=info.max_batch_tokens
            if encodes
            else min(max_batch_tokens, info.max_batch_tokens),
            pool=PagePool(info.num_pages, _host(info) if caching and not encodes else None),
            batch=Batch(info.max_rows),
            caching=caching and not encodes,
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

    def takers(self, sequence: Sequence, local: int = 0) -> list[Worker]:
        """Workers that a sequence may start on: not those that only decode, unless there are no
        others, or no more than `local` of its tokens are to be computed there."""
        begin = [w for w in self if w.info.role != "decode" and not w.draining]
        if len(begin) == len(self):
            return begin
        decode = [w for w in self if w.info.role == "decode"]
        near = [w for w in decode if sequence.num_tokens - w.known_tokens(sequence) <= local]
        return begin + near if begin else list(self)

    def pick(self, sequence: Sequence, local: int = 0) -> Worker | None:
        """A worker that can start the sequence now: of those with about the least load, the one
        that knows the longest prefix of it."""
        takers = self.takers(sequence, local)
        able = [w for w in takers if w.fits(sequence) and w.has_room(sequence)]
        if len(able) < 2:
            return able[0] if able else None
        least = min(worker.load[0] for worker in able)
        near = [worker for worker in able if worker.load[0] <= least + _SIMILAR]
        return min(near, key=lambda w: (-w.known_tokens(sequence), w.load))


def _host(info: WorkerInfo) -> Host | None:
    """Pages that pass between workers may be written at any time, so those are not swapped."""
    return Host(info.host_pages) if info.host_pages and info.role == "both" else None


def _only_encodes(info: WorkerInfo) -> bool:
    """It runs whole sequences and nothing else: no prefix is of use to another one, and no decode
    row waits for a long step."""
    pooling = info.pooling
    return pooling is not None and pooling.reach == "whole" and not pooling.generates
