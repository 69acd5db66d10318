"""One worker as seen by the scheduler: capacity, pages, slots and in-flight steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec
import numpy as np

from baton.kv.page_groups import PageGroups
from baton.protocol import ExpertBalance, PageHashes, Result, Role, WorkerInfo
from baton.protocol.media import MAX_PIXEL_BYTES
from baton_scheduler.block_table import flat
from baton_scheduler.kv.allocator import Allocator
from baton_scheduler.kv.hash_sync import PageHashSync
from baton_scheduler.kv.host_cache import HostCache
from baton_scheduler.kv.kv_manager import KVManager
from baton_scheduler.kv.page_pool import PagePool
from baton_scheduler.kv.transfer_pages import TransferPages
from baton_scheduler.sequence import Cell, Sequence
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.in_flight import InFlightStep, InFlightSteps
from baton_scheduler.workers.meters import LatencyMeter, RateMeter, average

_MOST_MEDIA = 256
"""Number of media items that are remembered per worker."""
_WIDEST_PAGE = 256
"""Maximum page size of any worker in tokens."""
_NOTHING: Mapping[int, bytes] = MappingProxyType({})


class Worker:
    """Pages, slots and in-flight steps of a worker.

    `page_hashes` are those of pages cached in an earlier epoch; raises `ValueError` if there are no
    such pages. `max_num_batched_tokens` is the scheduler's limit on the new tokens of a step. It
    does not apply to a worker that only encodes whole texts: it has no decode rows that a long step
    would delay.
    """

    def __init__(
        self,
        name: str,
        epoch: int,
        info: WorkerInfo,
        max_num_batched_tokens: int,
        *,
        caching: bool,
        page_hashes: Mapping[int, bytes] = _NOTHING,
    ) -> None:
        encodes = _only_encodes(info)
        self.name, self.epoch, self.info = name, epoch, info
        most = info.max_num_batched_tokens
        self.budget = most if encodes else min(max_num_batched_tokens, most)
        """Maximum number of new tokens in one step."""
        self.groups = PageGroups(info.windows or (info.window,), info.page_size, self.budget)
        self.max_model_len = self.groups.longest(info.num_pages, info.max_model_len)
        """Maximum length of a sequence that runs here alone."""
        self.caching = caching and not encodes
        self.pool = PagePool(info.num_pages, _host(info) if self.caching else None)
        self._hash_sync = PageHashSync()
        if self.caching:
            self.pool.adopt(page_hashes)
            self._hash_sync.assume(self.pool.index)
        self.batch = SlotTable(info.max_num_seqs, len(self.groups))
        self.kv = KVManager(self.pool, self.batch, self.groups, caching=self.caching)
        self.allocator = Allocator(self.kv, self._worth, info.num_speculative_tokens)
        self.transfer_pages = TransferPages(self.kv)
        self.flights = InFlightSteps()
        self._init_administration()
        self._init_meters()
        self._media: dict[bytes, None] = {}
        """Keys of media whose embeddings the worker should have cached, the latest last."""

    def _init_administration(self) -> None:
        """What the worker was commanded, and whom it runs alone."""
        self.draining = False
        self.waking = False
        """The worker sleeps and was commanded to wake up."""
        self.evicting: set[bytes] = set()
        """Digests of adapters that the worker was commanded to drop and has not confirmed yet."""
        self.target = self.info.weights
        """Weights that the workers of its model agree on."""
        self.loaded = b""
        """Digest of the weights that the worker has loaded next to those in use."""
        self.switching = False
        """The worker was commanded to use `loaded`, and joins again once it does."""
        self.trial: Cell | None = None
        """Suspects that run alone on this worker."""

    def _init_meters(self) -> None:
        self.last_result_time = 0.0
        """Time of the last result."""
        self.steps = 0
        self.step_ms = 0.0
        self.gap_ms = 0.0
        """Moving average of the device's idle time between two steps."""
        self.expert_balance: ExpertBalance | None = None
        self.tokens = RateMeter()
        self.latency = LatencyMeter()
        self.step_cost = LinearCostModel()
        """Cost model of steps, by tokens."""
        self.swap_cost = LinearCostModel()
        """Cost model of swaps, by pages."""
        self.encode_cost = LinearCostModel()
        """Cost model of encoding media here, by embeddings."""

    @property
    def max_running(self) -> int:
        """Maximum number of running sequences; at most the token budget, as each decodes in every
        step."""
        return min(self.info.max_num_seqs, self.budget)

    @property
    def waiting_since(self) -> float | None:
        """Time since which a result is due; None if no step is in flight."""
        return max(self.flights.first.sent_at, self.last_result_time) if self.flights else None

    @property
    def load(self) -> tuple[float, int, str]:
        """Sort key; lower is better for a new sequence."""
        return (len(self.batch) / self.max_running, -self.pool.num_free, self.name)

    # Capacity.

    @property
    def outdated(self) -> bool:
        """True if its weights are not the agreed ones of its model: no sequence starts here."""
        return self.target.digest != self.info.weights.digest

    @property
    def open(self) -> bool:
        """True if sequences may start here."""
        return not (self.draining or self.info.asleep or self.outdated)

    def fits(self, sequence: Sequence) -> bool:
        """True if the worker serves its model, and it and one more token could ever run here."""
        if sequence.model not in ("", self.info.model) or not self.has_adapter(sequence):
            return False
        if sequence.single_step and sequence.num_tokens > self.budget:
            return False
        if sequence.spans.longest > self.budget:
            return False
        return sequence.num_tokens + (not sequence.scores_only) <= self.max_model_len

    def has_adapter(self, sequence: Sequence) -> bool:
        """True if the worker has the adapter of the sequence, if it has one."""
        return not sequence.adapter or sequence.adapter in self.adapters

    @property
    def adapters(self) -> set[bytes]:
        """Digests of the adapters in its memory, without those that it is to drop."""
        return {info.digest for info in self.info.adapters} - self.evicting

    def _mixes(self, sequence: Sequence, leaving: Iterable[int] = ()) -> bool:
        """True if its batch, without some slots, has room for the adapter of the sequence."""
        if not sequence.adapter:
            return True
        batch, leaving_slots = self.batch, set(leaving)
        slots = (slot for slot in batch.occupied() if slot not in leaving_slots)
        adapters = {batch.at(slot).adapter for slot in slots} - {b""}
        return len(adapters | {sequence.adapter}) <= self.info.max_loras

    def has_room(self, sequence: Sequence) -> bool:
        """True if the sequence can start now.

        One free page per group is reserved for every running sequence, so that a new one is not
        preempted at once; and no more prompts are admitted than one step can begin.
        """
        reserve = len(self.batch) * len(self.groups)
        return (
            self.open
            and self.trial is sequence.cell
            and len(self.batch) < self.max_running
            and self.batch.pending_prefill_tokens < self.budget
            and self._mixes(sequence)
            and self._carries(sequence)
            and self._missing_pages(sequence) + reserve <= self.pool.num_free
        )

    def _carries(self, sequence: Sequence) -> bool:
        """True if the next plan can carry its media beside those of others that enter."""
        if not sequence.media_bytes:
            return True
        batch = self.batch
        entering = [batch.at(slot) for slot in batch.occupied() if not batch.sent[slot]]
        return sum(s.media_bytes for s in (*entering, sequence)) <= MAX_PIXEL_BYTES

    def _missing_pages(self, sequence: Sequence) -> int:
        """Upper bound on the number of free pages that a sequence needs."""
        missing, total = 0, self.kv.num_blocks(sequence.num_tokens)
        for group, table in enumerate(self.kv.cached_prefix(sequence)):
            if self.groups.windows[group]:
                missing += self.kv.end(sequence, group, table.end, total) - table.first
            else:
                missing += total - sum(self.pool.references(page) > 0 for page in table.pages)
        return missing

    def yielding(
        self, sequence: Sequence, outranks: Callable[[Sequence, Sequence], bool]
    ) -> list[int]:
        """The fewest slots, last in the order of service first, whose preemption would make room
        for the sequence, which outranks them; empty if that is not enough."""
        batch, slots = self.batch, self.batch.occupied()
        if not self.open or self.trial is not sequence.cell:
            return []
        if not self.fits(sequence):
            return []
        if not self._carries(sequence):
            return []
        known = set(flat(self.kv.cached_prefix(sequence)))
        free, backlog = self.pool.num_free, batch.pending_prefill_tokens
        needed = self._missing_pages(sequence)
        slots.sort(key=lambda slot: batch.at(slot).key, reverse=True)
        for number, slot in enumerate(slots, start=1):
            if not outranks(sequence, batch.at(slot)):
                break
            own = (page for page in flat(batch.tables(slot)) if page not in known)
            free += sum(self.pool.references(page) == 1 for page in own)
            backlog -= batch.num_prefillable(slot)
            reserve = (len(slots) - number) * len(self.groups)
            enough = backlog < self.budget and needed + reserve <= free
            if enough and self._mixes(sequence, slots[:number]):
                return slots[:number]
        return []

    def seconds(self, num_tokens: int) -> float | None:
        """Estimated seconds to the first token of a prompt, if it and the queue before it have
        `num_tokens` tokens, given enough slots and pages; None before any measurement."""
        if not self.step_cost.measured:
            return None
        tokens = self.batch.pending_prefill_tokens + num_tokens
        room = max(1, self.budget - len(self.batch))
        steps = -(-tokens // room) + len(self.flights)
        return self.step_cost.seconds(tokens + steps * len(self.batch), steps)

    def _worth(self, num_pages: int, num_blocks: int) -> bool:
        """True if swapping in `num_pages` is faster than computing `num_blocks`, or either is not
        measured."""
        if not (self.step_cost.measured and self.swap_cost.measured):
            return True
        compute = self.step_cost.line[1] * num_blocks * self.info.page_size
        return self.swap_cost.seconds(num_pages, 1) <= compute

    # Arrival and departure of sequences.

    def place(self, sequence: Sequence, gateway: int) -> int:
        """Start a sequence. Returns the number of its cached tokens."""
        slot, hit = self.allocator.place(sequence, gateway, self.max_model_len)
        sequence.place(self.name, slot)
        return hit

    def evict(self, slot: int, *, broken: bool = False) -> Sequence:
        """Remove a sequence: its slot and pages are free at once, its log is kept.

        The pages of a broken sequence leave the prefix cache.
        """
        if not broken:
            self.kv.keep_tail(slot)
        self.allocator.cancel(slot)
        sequence, pages = self.batch.remove(slot)
        if broken:
            self.pool.uncache(pages)
        self.pool.give(pages)
        sequence.leave()
        return sequence

    def withdraw(self, slot: int) -> Sequence:
        """Remove a sequence that the worker would otherwise continue."""
        self.flights.wasteful = True
        return self.evict(slot)

    def has_media(self, key: bytes) -> bool:
        """True if its encoder cache should have the embeddings of a media item. If they were
        evicted, it encodes the item again."""
        return key in self._media

    def media_layout(self) -> bytes:
        """Keys of the media that it should have cached, for the state's digest."""
        return b"".join(self._media)

    def remember_media(self, key: bytes) -> None:
        """The embeddings of a media item are encoded or pulled here."""
        self._media.pop(key, None)
        self._media[key] = None
        if len(self._media) > _MOST_MEDIA:
            del self._media[next(iter(self._media))]

    def assign(self, role: Role) -> list[Sequence]:
        """Change the role. Returns the sequences that have left and must be placed again.

        A worker that takes part in transfers has no host cache (see `_host`), also after it returns
        to both roles. Sequences with pending swaps in therefore leave.
        """
        self.info = msgspec.structs.replace(self.info, role=role)
        if self.pool.host is None or role == "both":
            return []
        waiting = [self.evict(slot) for slot in list(self.batch.pending_swap_in)]
        self.pool.host = None
        return waiting

    def free_outside_window(self, *, slack: bool = True) -> None:
        """Free the pages that left their window.

        A prefill worker keeps some `slack`, since the target of a handoff resumes at a page
        boundary of its own page size.
        """
        passing = self.draining or self.info.role == "prefill"
        self.kv.free_outside_window(_WIDEST_PAGE - 1 if passing and slack else 0)

    def hash_updates(self, now: float) -> PageHashes | None:
        """Changes of page hashes to send to the worker."""
        return self._hash_sync.updates(self.pool.index, self.epoch, now)

    # Steps.

    def shorten(self, until: int) -> None:
        """End the last plan with step `until`, and move the rows of cancelled steps back.

        Raises `WireError` if `until` is not a step of this plan.
        """
        batch = self.batch
        for flight in self.flights.end(until):
            rows = flight.rows[flight.owners[flight.rows] == batch.lease_id[flight.rows]]
            batch.num_scheduled[rows] -= 1
        self.recount(
            np.flatnonzero(batch.variable_tokens & (batch.num_scheduled >= batch.num_known))
        )

    def recount(self, slots: Ints) -> None:
        """Estimate the positions of rows with a variable number of tokens, assuming one per
        in-flight step.

        Only the worker knows the positions: a grammar may force several tokens, and missing pages
        none. The result of the last in-flight step makes them exact.
        """
        if not len(slots):
            return
        batch, num_written = self.batch, self.batch.written(slots)
        for flight in self.flights:
            mine = flight.owners[slots] == batch.lease_id[slots]
            num_written = num_written + (mine & np.isin(slots, flight.sampling))
        most = np.minimum(batch.max_computed[slots], batch.capacity[slots])
        batch.num_scheduled[slots] = np.clip(num_written, batch.num_known[slots], most)

    def note(self, flight: InFlightStep, num_sampled: int, result: Result, now: float) -> None:
        """Record the timing of a step. A step that only released slots is not measured."""
        self.steps += 1
        if flight.sent_at <= self.last_result_time:  # The device did not wait for a plan.
            self.latency.step_done(now - self.last_result_time, len(flight.sampling), num_sampled)
        self.last_result_time = now
        self.tokens.add(num_sampled)
        self.latency.computed.add(flight.num_tokens)
        if flight.num_tokens:
            self.step_ms = average(self.step_ms, result.duration_us / 1000)
            others = result.swap_us + result.encoder_us
            self.step_cost.add(flight.num_tokens, (result.duration_us - others) / 1e6)
            self.gap_ms = average(self.gap_ms, result.gap_us / 1000)
        self.expert_balance = result.experts or self.expert_balance
        if result.num_encoded_tokens:
            self.encode_cost.add(result.num_encoded_tokens, result.encoder_us / 1e6)
        if flight.num_swapped:
            self.swap_cost.add(flight.num_swapped, result.swap_us / 1e6)

    def tick(self, now: float) -> None:
        """Advance the time of its meters."""
        self.tokens.tick(now)
        self.latency.computed.tick(now)

    def check(self) -> None:
        """Assert that sequences hold exactly the held pages, and share only full, hashed ones."""
        self.pool.check()
        self.batch.check()
        batch, slots = self.batch, self.batch.occupied()
        tables = Counter(page for slot in slots for page in flat(batch.tables(slot)))
        sources = Counter(page for pages in batch.sources.values() for page in pages)
        held = tables + Counter(self.transfer_pages) + sources
        assert len(held) == self.pool.num_held
        assert all(self.pool.references(page) == count for page, count in held.items())
        for slot in slots:
            ends = [table.end for table in batch.tables(slot)]
            assert min(ends) * self.info.page_size == batch.capacity[slot]
            written = int(batch.num_hashed_blocks[slot])
            writable = flat(table.since(written) for table in batch.tables(slot))
            assert all(tables[page] == 1 for page in writable), "a shared page may be written"
            self._check_seen(slot)
        for slot, pages in batch.sources.items():
            assert not batch.sent[slot] and all(page in self.pool.index for page in pages)
            assert not set(pages) & set(flat(batch.tables(slot))), "a page is copied to itself"

    def _check_seen(self, slot: int) -> None:
        """Assert that a sequence holds the pages its next token attends to, and no earlier ones."""
        length = int(max(self.batch.num_confirmed[slot], self.batch.num_cached_tokens[slot]))
        for group, table in enumerate(self.batch.tables(slot)):
            assert table.first <= self.groups.first(group, length), "a page is missing"
            assert table.pages, "a sequence has no page to stand for those that it let go"


def _host(info: WorkerInfo) -> HostCache | None:
    """The host cache; None for workers that transfer KV, since transfers write pages at any
    time."""
    return HostCache(info.host_pages) if info.host_pages and info.role == "both" else None


def _only_encodes(info: WorkerInfo) -> bool:
    """True if the worker runs whole sequences only."""
    pooling = info.pooling
    return pooling is not None and pooling.reach == "whole" and not pooling.generates
