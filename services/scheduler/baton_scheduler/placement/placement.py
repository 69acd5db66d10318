"""Which worker takes a sequence: filter, score, pick.

    waits:  takers (role), owners, room --> where it starts, and from a prefill worker lands then
    begun:  landings (role, layout, room) --> where it goes on with its keys

The filters are the same for every policy: they say what is possible. A policy only picks.
`CostBased` picks what is estimated to cost the least, in seconds, summed over everybody who pays:

    wait      until what is before it on the worker has been computed
    prefill   to compute its tokens that are not known there: this is the affinity to a prefix
    disturb   by which its prefill holds up those that decode there, all of them together
    decode    that it decodes for, and by which it slows down those beside it meanwhile
    room      to compute again what is cached there and has to make room for it
    transfer  to move its keys to where it decodes; nothing when it decodes where it starts

A prompt starts on a decode worker when that is cheaper than to compute it elsewhere and to move it,
up to `local` new tokens. What a token and a byte cost is measured (`LinearCostModel`,
`TransferCost`), and comes in with events: the same events give the same choices.
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
"""Seconds of a step, and more per token, before any was measured."""
_ANSWER = 256
"""Tokens that a sequence is taken to have before it, if it may have so many."""
Price: TypeAlias = tuple[float, float]
"""(a, b): seconds of a step, and more per token."""
_IN_FLIGHT = 2
"""Steps that a newcomer waits for, of those that are in flight: a longer plan is cut for it."""


class Score(NamedTuple):
    """Estimated seconds of one choice, unweighted."""

    wait: float = 0.0
    prefill: float = 0.0
    disturb: float = 0.0
    decode: float = 0.0
    room: float = 0.0
    transfer: float = 0.0


class DecodeTarget(NamedTuple):
    """A worker on which a sequence could decode."""

    worker: Worker
    score: Score
    """Without the transfer, which depends on where the keys are."""
    num_bytes: float
    """Keys that are not known there."""


class Placement(ABC):
    """One way to choose. Made with the weights of scores; `start` and `land` are asked in turn.

    Both return one of the workers that they are given, of which there is at least one.
    """

    def __init__(self, weights: Mapping[str, float], links: TransferCost | None = None) -> None:
        self.weights = weights
        self.links = links or TransferCost()

    def owners(self, sequence: Sequence, willing: list[Worker]) -> list[Worker]:
        """Those of the workers that may start a sequence for which it waits, room or not: all of
        them, unless it belongs to one."""
        return willing

    def rank(self, worker: Worker, fleet: Fleet) -> int:
        """The number by which sequences belong to a worker; -1 where they belong to nobody."""
        return -1

    @abstractmethod
    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        """Where a waiting sequence begins."""

    @abstractmethod
    def land(self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet) -> Worker:
        """Where a sequence goes on that `source` passes on."""

    def layout(self) -> bytes:
        """All that later choices depend on, for the state's digest."""
        return self.links.layout()


class CostBased(Placement):
    """The least estimated seconds; of equals the least loaded."""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        if len(able) == 1:
            return able[0]
        passes, mean = any(w.info.role == "prefill" for w in able), average(fleet)
        ends = _ends(sequence, decode_candidates(sequence, fleet), mean) if passes else []
        return min(able, key=lambda w: (self._whole(sequence, w, ends, mean), w.load))

    def land(self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet) -> Worker:
        if len(able) == 1:
            return able[0]
        ends = _ends(sequence, able, average(fleet))
        return min(ends, key=lambda end: (self._after(source, end), end.worker.load)).worker

    def _whole(
        self, sequence: Sequence, worker: Worker, ends: list[DecodeTarget], mean: Price
    ) -> float:
        """Weighted seconds when it begins on this worker, and goes on at the best place for it."""
        known = worker.keys.known_tokens(sequence)
        first = self._sum(beginning(sequence, worker, known, mean))
        if worker.info.role == "prefill":
            after = [self._after(worker, end) for end in ends if kv_compatible(worker, end.worker)]
            if after:
                return first + min(after)
        return first + self._sum(decode_target(sequence, worker, known, mean).score)

    def _after(self, source: Worker, end: DecodeTarget) -> float:
        seconds = self.links.seconds(source.name, end.worker.name, end.num_bytes)
        return self._sum(end.score._replace(transfer=seconds))

    def _sum(self, score: Score) -> float:
        names = Score._fields
        return sum(self.weights[name] * value for name, value in zip(names, score, strict=True))


class RoundRobin(Placement):
    """In turn, by name, whatever they know and do: what the others are measured by."""

    def __init__(self, weights: Mapping[str, float], links: TransferCost | None = None) -> None:
        super().__init__(weights, links)
        self._started = self._landed = ""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        worker = _after(self._started, able)
        self._started = worker.name
        return worker

    def land(self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet) -> Worker:
        worker = _after(self._landed, able)
        self._landed = worker.name
        return worker

    def layout(self) -> bytes:
        return repr((self._started, self._landed)).encode() + super().layout()


class LeastLoaded(Placement):
    """The fewest rows in use, then the most free pages."""

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        return min(able, key=lambda w: w.load)

    def land(self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet) -> Worker:
        return min(able, key=lambda w: w.load)


class Modulo(Placement):
    """Every request belongs to one worker, as to a rank of a data-parallel group: to that whose
    rank is the request's number modulo how many there are.

    Ranks are the workers' places in the order of their names; a request's number is the CRC-32 of
    its id. So whoever knows a request and the workers knows its owner, its choices share one, and
    a scheduler that begins anew finds the same. A request waits for its owner, although others may
    have room, and so does who comes behind it. When workers come or go, what waits is dealt out
    anew; what runs stays.
    """

    def owners(self, sequence: Sequence, willing: list[Worker]) -> list[Worker]:
        able = [w for w in _beginners(willing) if w.fits(sequence)]
        return [_owner(sequence, able)] if able else []

    def rank(self, worker: Worker, fleet: Fleet) -> int:
        ranks = _beginners(w for w in fleet if not w.draining)
        return ranks.index(worker) if worker in ranks else -1

    def start(self, sequence: Sequence, able: list[Worker], fleet: Fleet) -> Worker:
        return _owner(sequence, _by_name(able))

    def land(self, sequence: Sequence, source: Worker, able: list[Worker], fleet: Fleet) -> Worker:
        return _owner(sequence, _by_name(able))


def _by_name(workers: Iterable[Worker]) -> list[Worker]:
    return sorted(workers, key=lambda worker: worker.name)


def _beginners(workers: Iterable[Worker]) -> list[Worker]:
    """Those that do not only decode, unless there are no others."""
    ranks = _by_name(workers)
    return [w for w in ranks if w.info.role != "decode"] or ranks


def _owner(sequence: Sequence, ranks: list[Worker]) -> Worker:
    return ranks[crc32(sequence.submit.request.encode()) % len(ranks)]


def _after(name: str, able: list[Worker]) -> Worker:
    return min(able, key=lambda w: (w.name <= name, w.name))


# Filters.


def prefill_candidates(sequence: Sequence, fleet: Fleet, local: int) -> list[Worker]:
    """Workers that a sequence may start on: not those that only decode, unless there are no
    others, or no more than `local` of its tokens are to be computed there."""
    begin = [w for w in fleet if w.info.role != "decode" and not w.draining]
    if len(begin) == len(fleet):
        return begin
    decode = [w for w in fleet if w.info.role == "decode"]
    near = [w for w in decode if sequence.num_tokens - w.keys.known_tokens(sequence) <= local]
    return begin + near if begin else list(fleet)


def with_room(sequence: Sequence, willing: list[Worker]) -> list[Worker]:
    """Those of some workers that can start it now."""
    return [w for w in willing if w.fits(sequence) and w.has_room(sequence)]


def decode_candidates(sequence: Sequence, fleet: Fleet) -> list[Worker]:
    """Workers that can go on now with what another one passes on."""
    return [
        w
        for w in fleet
        if w.info.role != "prefill" and w.caching and w.fits(sequence) and w.has_room(sequence)
    ]


def kv_compatible(source: Worker, target: Worker) -> bool:
    """Keys can pass from one to the other."""
    same = source.info.kv_layout == target.info.kv_layout
    return source is not target and same and source.groups.windows == target.groups.windows


# Scores.


def beginning(sequence: Sequence, worker: Worker, known: int, mean: Price) -> Score:
    """What its prefill on this worker costs, which knows so many of its tokens."""
    base, slope = price(worker, mean)
    batch, rows = worker.batch, len(worker.batch)
    new = sequence.num_tokens - known
    steps = -(-(batch.pending_prefill_tokens + new) // max(1, worker.budget - rows))
    steps += min(len(worker.flights), _IN_FLIGHT)
    return Score(
        wait=base * steps + slope * (batch.pending_prefill_tokens + steps * rows),
        prefill=slope * new,
        disturb=slope * new * rows,
    )


def decode_target(sequence: Sequence, target: Worker, known: int, mean: Price) -> DecodeTarget:
    """What it costs to decode on this worker, which knows so many of its tokens, and what it lacks
    of the keys."""
    base, slope = price(target, mean)
    rows, size = len(target.batch), target.info.page_size
    left = min(_ANSWER, max(0, sequence.sampling.max_tokens - len(sequence.log)))
    missing = -(-sequence.num_tokens // size) - known // size
    evicted = max(0, missing - (target.pool.num_free - target.pool.num_cached))
    score = Score(decode=left * (base + 2 * slope * rows), room=slope * evicted * size)
    return DecodeTarget(target, score, token_bytes(target.info) * (sequence.num_tokens - known))


def _ends(sequence: Sequence, workers: list[Worker], mean: Price) -> list[DecodeTarget]:
    return [decode_target(sequence, w, w.keys.known_tokens(sequence), mean) for w in workers]


def token_bytes(info: WorkerInfo) -> float:
    """Bytes of the keys and values of one token, in all layers; 0 where a worker does not say."""
    groups = max(1, len(info.windows))
    return info.kv_bytes * groups / (info.num_pages * info.page_size)


def price(worker: Worker, mean: Price) -> Price:
    """What a step on this worker costs. One that has only decoded so far does not know what a token
    of a prompt costs: it is taken for an average worker."""
    return worker.pace.line if worker.pace.varied else mean


def average(fleet: Fleet) -> Price:
    """Of all workers together: asked for once per choice, as it looks at each of them."""
    together = LinearCostModel.together(worker.pace for worker in fleet)
    return together.line if together.known else _NOMINAL
