"""Placement: choose the worker for a sequence by filtering, scoring and picking.

    queued:  candidates (role), owners, room --> worker that starts it, and its decode target
    running: candidates (role, layout, room) --> worker that continues it with its KV

The filters are the same for every policy: they decide which workers are possible. `CostBased` picks
the lowest estimated cost, in seconds, summed over all affected sequences:

    wait          until the worker has computed its queue
    prefill       time to compute the tokens that are not cached there (prefix affinity)
    interference  delay of all sequences that decode there, caused by the prefill
    decode        time of its decode steps, and the slowdown of the others meanwhile
    eviction      time to recompute cached pages that are evicted for it
    transfer      time to move its KV to the decode target; 0 if it decodes where it starts

A prompt starts on a decode worker if that is cheaper than computing it elsewhere and moving it, up
to `local` new tokens. Costs per token and byte are measured (`LinearCostModel`, `TransferCost`)
from events, so equal events give equal choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias
from zlib import crc32

from baton.protocol import WorkerInfo
from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker

_NOMINAL = (0.01, 0.0001)
"""Seconds per step and per token before any measurement."""
_ANSWER = 256
"""Assumed number of output tokens, limited by max_tokens."""
Price: TypeAlias = tuple[float, float]
"""(a, b): seconds per step and per token."""
_IN_FLIGHT = 2
"""In-flight steps that a new sequence waits for; a longer plan is truncated."""


class Score(NamedTuple):
    """Unweighted costs of one choice, in estimated seconds."""

    wait: float = 0.0
    prefill: float = 0.0
    interference: float = 0.0
    decode: float = 0.0
    eviction: float = 0.0
    transfer: float = 0.0


class DecodeTarget(NamedTuple):
    """A worker on which a sequence could decode."""

    worker: Worker
    score: Score
    """Costs without the transfer, which depends on the source."""
    num_bytes: float
    """KV bytes that are not cached there."""


class Placement(ABC):
    """A placement policy, created with the weights of scores.

    `start` and `place_decode` return one of the given workers, at least one.
    """

    def __init__(self, weights: Mapping[str, float], links: TransferCost | None = None) -> None:
        self.weights = weights
        self.links = links or TransferCost()

    def owners(self, sequence: Sequence, candidates: list[Worker]) -> list[Worker]:
        """Workers that may start a waiting sequence, regardless of room: all, unless the policy
        assigns the sequence to one."""
        return candidates

    def rank(self, worker: Worker, fleet: Fleet) -> int:
        """Rank of a worker to which the policy assigns sequences; -1 under other policies."""
        return -1

    @abstractmethod
    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        """Worker that starts a waiting sequence."""

    @abstractmethod
    def place_decode(
        self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet
    ) -> Worker:
        """Worker that continues a sequence handed off by `source`."""

    def layout(self) -> bytes:
        """All state that later choices depend on, for the state's digest."""
        return self.links.layout()


class CostBased(Placement):
    """Lowest estimated cost; the least loaded worker among equals."""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        if len(able) == 1:
            return able[0]
        passes, mean = any(w.info.role == "prefill" for w in able), average(fleet)
        ends = _ends(sequence, decode_candidates(sequence, fleet), mean) if passes else []
        return min(able, key=lambda w: (self._total_cost(sequence, w, ends, mean), w.load))

    def place_decode(
        self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet
    ) -> Worker:
        if len(able) == 1:
            return able[0]
        ends = _ends(sequence, able, average(fleet))
        return min(ends, key=lambda end: (self._handoff_cost(source, end), end.worker.load)).worker

    def _total_cost(
        self, sequence: Sequence, worker: Worker, ends: list[DecodeTarget], mean: Price
    ) -> float:
        """Weighted cost of starting on this worker and continuing on the best decode target."""
        num_cached = worker.kv.num_cached_tokens(sequence)
        first = self._sum(beginning(sequence, worker, num_cached, mean))
        if worker.info.role == "prefill":
            handoffs = [
                self._handoff_cost(worker, end) for end in ends if kv_compatible(worker, end.worker)
            ]
            if handoffs:
                return first + min(handoffs)
        return first + self._sum(decode_target(sequence, worker, num_cached, mean).score)

    def _handoff_cost(self, source: Worker, end: DecodeTarget) -> float:
        seconds = self.links.seconds(source.name, end.worker.name, end.num_bytes)
        return self._sum(end.score._replace(transfer=seconds))

    def _sum(self, score: Score) -> float:
        names = Score._fields
        return sum(self.weights[name] * value for name, value in zip(names, score, strict=True))


class RoundRobin(Placement):
    """In turn, by name, regardless of load and cache; the baseline for other policies."""

    def __init__(self, weights: Mapping[str, float], links: TransferCost | None = None) -> None:
        super().__init__(weights, links)
        self._started: dict[str, str] = {}
        self._decode_turns: dict[str, str] = {}
        """Model -> the worker that had the last turn."""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        return _next(self._started, sequence.model, able)

    def place_decode(
        self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet
    ) -> Worker:
        return _next(self._decode_turns, sequence.model, able)

    def layout(self) -> bytes:
        return repr((self._started, self._decode_turns)).encode() + super().layout()


class LeastLoaded(Placement):
    """Fewest rows in use, then most free pages."""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        return min(able, key=lambda w: w.load)

    def place_decode(
        self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet
    ) -> Worker:
        return min(able, key=lambda w: w.load)


class Modulo(Placement):
    """Assigns every request to one worker, as data-parallel ranks do: rank = request number mod
    number of workers.

    Ranks follow the sorted worker names; the request number is the CRC-32 of its id. So the owner
    follows from the request and the workers alone, all choices of a request share it, and a
    restarted scheduler finds the same one. A request waits for its owner even if others have room,
    and blocks the queue behind it. When workers join or leave, waiting requests are reassigned;
    running ones stay.
    """

    def owners(self, sequence: Sequence, candidates: list[Worker]) -> list[Worker]:
        able = [w for w in _prefill_ranks(candidates) if w.fits(sequence)]
        return [_owner(sequence, able)] if able else []

    def rank(self, worker: Worker, fleet: Fleet) -> int:
        model = worker.info.model
        ranks = _prefill_ranks(w for w in fleet.serving(model) if not w.draining)
        return ranks.index(worker) if worker in ranks else -1

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        return _owner(sequence, _by_name(able))

    def place_decode(
        self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet
    ) -> Worker:
        return _owner(sequence, _by_name(able))


def _by_name(workers: Iterable[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda worker: worker.name)


def _prefill_ranks(workers: Iterable[Worker]) -> list[Worker]:
    """Workers that prefill; all workers if none does."""
    ranks = _by_name(workers)
    return [w for w in ranks if w.info.role != "decode"] or ranks


def _owner(sequence: Sequence, ranks: list[Worker]) -> Worker:
    return ranks[crc32(sequence.submit.request.encode()) % len(ranks)]


def _next(latest: dict[str, str], model: str, able: list[Worker]) -> Worker:
    last = latest.get(model, "")
    worker = min(able, key=lambda w: (w.name <= last, w.name))
    latest[model] = worker.name
    return worker


# Filters.


def prefill_candidates(sequence: Sequence, fleet: Fleet, local: int) -> list[Worker]:
    """Workers that a sequence may start on. Decode workers count only if there are no others, or if
    at most `local` tokens are to be computed there."""
    begin = [w for w in fleet if w.info.role != "decode" and not w.draining]
    if len(begin) == len(fleet):
        return begin
    decode = [w for w in fleet if w.info.role == "decode"]
    near = [w for w in decode if sequence.num_tokens - w.kv.num_cached_tokens(sequence) <= local]
    return begin + near if begin else list(fleet)


def with_room(sequence: Sequence, candidates: list[Worker]) -> list[Worker]:
    """Candidates with room to start the sequence now."""
    return [w for w in candidates if w.fits(sequence) and w.has_room(sequence)]


def decode_candidates(sequence: Sequence, fleet: Fleet) -> list[Worker]:
    """Workers that can continue a handed-off sequence now."""
    return [
        w
        for w in fleet
        if w.info.role != "prefill" and w.caching and w.fits(sequence) and w.has_room(sequence)
    ]


def kv_compatible(source: Worker, target: Worker) -> bool:
    """True if KV can be transferred from source to target."""
    source_info, target_info = source.info, target.info
    same = (source_info.model, source_info.kv_layout) == (target_info.model, target_info.kv_layout)
    same = same and source_info.weights.digest == target_info.weights.digest
    return source is not target and same and source.groups.windows == target.groups.windows


# Scores.


def beginning(sequence: Sequence, worker: Worker, num_cached: int, mean: Price) -> Score:
    """Cost of the prefill on this worker, with `num_cached` cached tokens."""
    base, slope = price(worker, mean)
    batch, rows = worker.batch, len(worker.batch)
    new = sequence.num_tokens - num_cached
    steps = -(-(batch.pending_prefill_tokens + new) // max(1, worker.budget - rows))
    steps += min(len(worker.flights), _IN_FLIGHT)
    return Score(
        wait=base * steps + slope * (batch.pending_prefill_tokens + steps * rows),
        prefill=slope * new,
        interference=slope * new * rows,
    )


def decode_target(sequence: Sequence, target: Worker, num_cached: int, mean: Price) -> DecodeTarget:
    """Cost of decoding on this worker with `num_cached` cached tokens, and the KV bytes that it
    lacks."""
    base, slope = price(target, mean)
    rows, size = len(target.batch), target.info.page_size
    left = min(_ANSWER, max(0, sequence.sampling.max_tokens - len(sequence.log)))
    missing = -(-sequence.num_tokens // size) - num_cached // size
    evicted = max(0, missing - (target.pool.num_free - target.pool.num_cached))
    score = Score(decode=left * (base + 2 * slope * rows), eviction=slope * evicted * size)
    return DecodeTarget(
        target, score, token_bytes(target.info) * (sequence.num_tokens - num_cached)
    )


def _ends(sequence: Sequence, workers: list[Worker], mean: Price) -> list[DecodeTarget]:
    return [decode_target(sequence, w, w.kv.num_cached_tokens(sequence), mean) for w in workers]


def token_bytes(info: WorkerInfo) -> float:
    """KV bytes per token over all layers; 0 if the worker does not report them."""
    groups = max(1, len(info.windows))
    return info.kv_bytes * groups / (info.num_pages * info.page_size)


def price(worker: Worker, mean: Price) -> Price:
    """Cost of a step on this worker. A worker without prefill measurements is taken as average."""
    return worker.step_cost.line if worker.step_cost.varied else mean


def average(fleet: Fleet) -> Price:
    """Mean cost of a step over all workers; computed once per choice, as it visits each of them."""
    together = LinearCostModel.together(worker.step_cost for worker in fleet)
    return together.line if together.measured else _NOMINAL
