"""MediaEncodings: media of waiting sequences are encoded on workers of the role `encode`.

    arrives --> queued --> encoding --> encoded --> pulled by the worker that prefills --> starts
                  ^  EncodeMedia  MediaEncoded  Pull, Pulled
                  +---- the encode worker is lost

A sequence waits until its encodings are done and its embeddings are on the worker where it starts;
others start meanwhile. An item is encoded once for all sequences that wait for it under one key.
The pixels still travel with the sequence, and its worker encodes what it lacks, so a lost encode
worker, a failed transfer or an evicted embedding costs time only.

An item that crashes encode workers is refused: the worker that prefills would crash too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from baton.protocol import EncodeMedia, Media, MediaEncoded, Pull, Pulled, Revoke, WorkerInfo
from baton.protocol.token_columns import pack
from baton_scheduler.block_hashes import media_key
from baton_scheduler.events import Cause, Decision, WorkerMessage
from baton_scheduler.placement.encode_cost import worth_remote_encoding
from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker

_MOST_PULLS = 2
"""Workers to which the embeddings of one sequence are sent; after that it starts without them."""
_MOST_MISSES = 2
"""Times that pixels may be missing before the prefill worker encodes the item."""
_MOST_DEATHS = 2
"""Encode workers that an item may crash before it is refused."""


@dataclass(slots=True, eq=False)
class Encoding:
    """One media item under one key, for all sequences that wait for it."""

    model: str
    item: Media
    """`digest` is the item's key in encoder caches."""
    waiting: list[Sequence] = field(default_factory=list)
    id: int = 0
    """Number under which the item was last sent."""
    worker: str = ""
    """Encode worker that has the item; empty while it is queued."""
    done: bool = False
    num_bytes: int = 0
    """Bytes of the embeddings, once they exist."""
    deaths: int = 0
    misses: int = 0
    """Number of times that an encode worker did not find the pixels."""
    pulled_by: set[str] = field(default_factory=set)
    """Workers that have pulled the embeddings."""
    digest: bytes = b""
    """`Media.digest` of the item in the prompts of the waiting sequences."""

    def take_pixels(self) -> None:
        """Use the pixels of a waiting sequence, since those of an ended sequence have been
        freed."""
        media = self.waiting[0].submit.media
        pixels_source = next(item for item in media if item.digest == self.digest)
        self.item = msgspec.structs.replace(pixels_source, digest=self.item.digest)


@dataclass(slots=True, eq=False)
class EmbeddingPull:
    """Embeddings on their way to a worker."""

    encoding: Encoding
    id: int
    source: str
    target: str
    target_epoch: int
    waiting: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class EncodingCounters:
    """Totals since the start."""

    encoded: int = 0
    """Items encoded by encode workers."""
    shared: int = 0
    """Items that needed no encoding: encoded for another sequence, or cached."""
    retried: int = 0
    """Items that were sent again because their encode worker was lost."""
    pulled: int = 0
    """Transfers of embeddings to prefill workers."""
    failed_pulls: int = 0


class MediaEncodings:
    """Encode workers, and all encodings and transfers of embeddings in progress."""

    def __init__(self, links: TransferCost, workers: dict[str, EncodeWorker]) -> None:
        """`workers` are the workers of the role encode, by name."""
        self._links = links
        self.workers = workers
        self.counters = EncodingCounters()
        self._count = 0
        self._encodings: dict[tuple[str, bytes], Encoding] = {}
        self._pulls: dict[tuple[str, int], EmbeddingPull] = {}
        """Pulls by target and number."""
        self._by_sequence: dict[int, list[Encoding]] = {}
        """Arrival number of a sequence -> encodings that it waits for."""
        self._outbox: list[WorkerMessage] = []
        self._unexplained: dict[int, Encoding] = {}
        """Epoch of a lost encode worker -> the item it was encoding, until the cause of its exit is
        known."""

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._encodings.values())

    def serving(self, model: str) -> list[EncodeWorker]:
        """Encode workers of a model that take work; of all models if `model` is empty."""
        all_of = [w for w in self.workers.values() if model in ("", w.info.model)]
        return [worker for worker in all_of if not worker.draining]

    def backlog(self, model: str) -> float:
        """Estimated seconds until the last queued item of a model is encoded."""
        workers = self.serving(model)
        if not workers:
            return 0.0
        ahead = self._num_queued_tokens(model)
        seconds = (w.backlog + w.encode_cost.seconds(ahead, 0) / len(workers) for w in workers)
        return sum(seconds) / len(workers)

    def of(self, sequence: Sequence) -> list[Encoding]:
        """Encodings that a sequence waits for."""
        return list(self._by_sequence.get(sequence.arrival, ()))

    # Workers.

    def join(self, name: str, epoch: int, info: WorkerInfo) -> None:
        """Add an encode worker. No present worker has its name."""
        assert name not in self.workers
        self.workers[name] = EncodeWorker(name, epoch, info)

    def leave(self, name: str, cause: Cause) -> list[Sequence]:
        """Remove an encode worker. Embeddings that were not pulled yet are encoded again, by
        another encode worker or by the prefill worker. Returns the sequences whose item has crashed
        too many workers."""
        worker = self.workers.pop(name)
        self._links.forget(name)
        self._withdraw(name)
        suspect = self._running(worker)
        for pull in [pull for pull in self._pulls.values() if pull.source == name]:
            self._drop(pull)
        lost = [encoding for encoding in self if encoding.worker == name]
        for encoding in lost:
            self._requeue(encoding)
        self._give_up_queued()
        if suspect is not None and cause == "unknown":
            self._unexplained[worker.epoch] = suspect
        return self._count_death(suspect) if suspect is not None and cause == "inside" else []

    def explained(self, epoch: int, cause: Cause) -> list[Sequence]:
        """Record why a lost encode worker exited. Returns as `leave`."""
        suspect = self._unexplained.pop(epoch, None)
        return self._count_death(suspect) if suspect is not None and cause == "inside" else []

    def target_left(self, name: str) -> None:
        """A prefill worker is gone, with the embeddings that it had pulled."""
        self._withdraw(name)
        for pull in [pull for pull in self._pulls.values() if pull.target == name]:
            self._drop(pull)
        for encoding in self:
            encoding.pulled_by.discard(name)

    def _withdraw(self, name: str) -> None:
        """Drop unsent messages to a worker that is gone."""
        self._outbox = [message for message in self._outbox if message.worker != name]

    # Sequences.

    def request(self, sequence: Sequence, fleet: Fleet) -> None:
        """Queue the media of a waiting sequence for encode workers where that is estimated to pay
        off.

        Args:
            fleet: workers that may prefill it.
        """
        if not sequence.submit.media or sequence.ended:
            return
        local = [worker for worker in fleet if not worker.draining]
        encoders = self._usable(sequence.model, local)
        if not encoders:
            return
        num_cached = max((worker.kv.num_cached_tokens(sequence) for worker in local), default=0)
        for item in _distinct(sequence.submit.media):
            if item.is_needed(num_cached) and not item.is_embeds:
                self._request(sequence, item, encoders, local)
        self._update(sequence)

    def pull(self, sequence: Sequence, worker: Worker) -> bool:
        """Send the embeddings of a sequence to the worker where it is about to start. Returns
        whether the sequence must wait for them."""
        mine = [e for e in self.of(sequence) if e.done and worker.name not in e.pulled_by]
        if not mine or worker.info.encoder_layout != self._layout(mine[0]):
            return False
        if sequence.num_pulls >= _MOST_PULLS:
            return False
        num_cached = worker.kv.num_cached_tokens(sequence)
        media = [item for item in sequence.submit.media if item.is_needed(num_cached)]
        needed = {media_key(sequence.submit, item.digest, sequence.weights) for item in media}
        missing = [encoding for encoding in mine if encoding.item.digest in needed]
        for encoding in missing:
            self._pull(encoding, sequence, worker)
        if missing:
            sequence.num_pulls += 1
            sequence.media_worker = worker.name
        self._update(sequence)
        return sequence.num_awaited > 0

    def release(self, sequence: Sequence) -> None:
        """Stop waiting for the encodings of a sequence that starts or has ended."""
        for encoding in self.of(sequence):
            self._leave(encoding, sequence)
        for pull in self._pulls.values():
            if sequence in pull.waiting:
                pull.waiting.remove(sequence)
        sequence.num_awaited, sequence.media_worker, sequence.num_pulls = 0, "", 0

    # Messages.

    def encoded(self, name: str, message: MediaEncoded, now: float) -> list[Sequence]:
        """Process an encode worker's answer. Returns the sequences whose item the worker
        refuses."""
        worker = self.workers.get(name)
        stale = worker is None or worker.epoch != message.epoch
        if worker is None or stale or message.id not in worker.in_flight:
            return []
        worker.end(message.id, message.duration_us / 1e6, now)
        encoding = next((e for e in self if e.id == message.id and e.worker == name), None)
        if encoding is None:  # No sequence waits for it any more.
            return []
        if message.unavailable:
            self._find_pixels(encoding)
            return []
        if message.refused:
            return list(encoding.waiting)
        encoding.done, encoding.num_bytes = True, message.num_bytes
        encoding.item = msgspec.structs.replace(encoding.item, length=message.num_tokens)
        self.counters.encoded += message.duration_us > 0
        self.counters.shared += message.duration_us == 0
        self._update_all(encoding)
        return []

    def pulled(self, name: str, message: Pulled, worker: Worker | None) -> None:
        """A pull of embeddings has ended; `worker` is its target, if still present."""
        pull = self._pulls.get((name, message.id))
        if pull is None or pull.target_epoch != message.epoch:
            return
        self._drop(pull)
        if message.reason or worker is None:
            self.counters.failed_pulls += 1
            return
        self.counters.pulled += 1
        pull.encoding.pulled_by.add(name)
        worker.remember_media(pull.encoding.item.digest)
        seconds = message.duration_us / 1e6
        self._links.add(pull.source, name, message.num_bytes, seconds)

    def dispatch(self, now: float) -> list[Decision]:
        """Messages to workers: revoked encodings, pulls, and new work for free encode workers."""
        self._give_up_queued()
        decisions: list[Decision] = [*self._outbox]
        self._outbox.clear()
        for encoding in [e for e in self if not e.worker]:
            free = [worker for worker in self.serving(encoding.model) if worker.free]
            if free:
                worker = min(free, key=lambda worker: worker.load)
                decisions.append(self._send(encoding, worker, now))
        for worker in self.workers.values():
            worker.tokens.tick(now)
        return decisions

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        rows = [
            (
                key,
                e.id,
                e.worker,
                e.done,
                e.deaths,
                sorted(e.pulled_by),
                [s.arrival for s in e.waiting],
            )
            for key, e in self._encodings.items()
        ]
        pulls = [(key, [s.arrival for s in p.waiting]) for key, p in self._pulls.items()]
        workers = [
            (w.name, w.epoch, w.draining, w.in_flight, w.encode_cost.line)
            for w in self.workers.values()
        ]
        return repr((self._count, rows, pulls, workers)).encode()

    def check(self) -> None:
        """Assert that sequences wait for exactly what is in progress for them."""
        for encoding in self:
            assert encoding.waiting, "no sequence waits for an encoding"
            assert all(encoding in self.of(sequence) for sequence in encoding.waiting)
            assert not encoding.worker or encoding.worker in self.workers
            assert not encoding.done or encoding.worker
            for sequence in encoding.waiting:
                assert sequence.worker is None and not sequence.ended
                assert sequence.num_awaited == self._awaited(sequence)
        assert all(pull.source in self.workers for pull in self._pulls.values())

    # One item.

    def _request(
        self, sequence: Sequence, item: Media, encoders: list[EncodeWorker], local: list[Worker]
    ) -> None:
        key = media_key(sequence.submit, item.digest, sequence.weights)
        encoding = self._encodings.get((sequence.model, key))
        if encoding is not None:
            self.counters.shared += 1
        elif any(worker.has_media(key) for worker in local):
            self.counters.shared += 1
            return
        else:
            if not self._worth(sequence.model, item, encoders, local):
                return
            keyed = msgspec.structs.replace(item, digest=key)
            encoding = self._encodings[sequence.model, key] = Encoding(
                sequence.model, keyed, digest=item.digest
            )
        if sequence not in encoding.waiting:
            encoding.waiting.append(sequence)
            self._by_sequence.setdefault(sequence.arrival, []).append(encoding)

    def _leave(self, encoding: Encoding, sequence: Sequence) -> None:
        """Remove a sequence from the waiting list of an encoding; the encoding ends with the last
        one."""
        encoding.waiting.remove(sequence)
        self._by_sequence[sequence.arrival].remove(encoding)
        if not self._by_sequence[sequence.arrival]:
            del self._by_sequence[sequence.arrival]
        if not encoding.waiting:
            self._end(encoding)

    def _worth(
        self, model: str, item: Media, encoders: list[EncodeWorker], local: list[Worker]
    ) -> bool:
        sizes = [
            encoding.num_bytes / encoding.item.num_encoded for encoding in self if encoding.done
        ]
        num_bytes = item.num_encoded * (sizes[-1] if sizes else 0.0)
        ahead = self._num_queued_tokens(model)
        return worth_remote_encoding(
            item.num_encoded, num_bytes, ahead, encoders, local, self._links
        )

    def _usable(self, model: str, local: Iterable[Worker]) -> list[EncodeWorker]:
        """Encode workers whose embeddings a prefill worker accepts: same layout and same version of
        the weights."""
        takes = {(w.info.encoder_layout, w.target.digest) for w in local if w.info.encoder_layout}
        able = self.serving(model)
        return [w for w in able if (w.info.encoder_layout, w.info.weights.digest) in takes]

    def _layout(self, encoding: Encoding) -> str:
        return self.workers[encoding.worker].info.encoder_layout

    def _num_queued_tokens(self, model: str) -> int:
        """Number of embeddings queued for the encode workers of a model."""
        queued = (e for e in self if not e.worker and (model == e.model or not e.model))
        return sum(encoding.item.num_encoded for encoding in queued)

    def _send(self, encoding: Encoding, worker: EncodeWorker, now: float) -> Decision:
        self._count += 1
        encoding.id, encoding.worker = self._count, worker.name
        encoding.take_pixels()
        worker.begin(encoding.id, encoding.item.num_encoded, now)
        token = _token(encoding.id, worker)
        return WorkerMessage(
            worker.name, EncodeMedia(worker.epoch, encoding.id, token, encoding.item)
        )

    def _pull(self, encoding: Encoding, sequence: Sequence, worker: Worker) -> None:
        source, number = self.workers[encoding.worker], encoding.id
        pull = self._pulls.get((worker.name, number))
        if pull is None:
            pull = EmbeddingPull(encoding, number, source.name, worker.name, worker.epoch)
            self._pulls[worker.name, number] = pull
            order = Pull(
                epoch=worker.epoch,
                id=number,
                address=source.info.kv_address,
                token=_token(number, source),
                start=0,
                end=encoding.item.num_encoded,
                pages=b"",
                source_epoch=source.epoch,
                digest=encoding.item.digest,
            )
            self._outbox.append(WorkerMessage(worker.name, order))
        pull.waiting.append(sequence)

    def _drop(self, pull: EmbeddingPull) -> None:
        del self._pulls[pull.target, pull.id]
        for sequence in pull.waiting:
            self._update(sequence)

    def _find_pixels(self, encoding: Encoding) -> None:
        """The request that brought the pixels has ended: use the pixels of another waiting
        sequence, or leave the item to the prefill workers."""
        encoding.misses += 1
        self._requeue(encoding)
        if encoding.misses >= _MOST_MISSES:
            for sequence in list(encoding.waiting):
                self._leave(encoding, sequence)
                self._update(sequence)

    def _requeue(self, encoding: Encoding) -> None:
        """Encode again for sequences whose embeddings have not arrived."""
        encoding.worker, encoding.done, encoding.id = "", False, 0
        for sequence in [s for s in encoding.waiting if s.media_worker in encoding.pulled_by]:
            self._leave(encoding, sequence)
        self.counters.retried += bool(encoding.waiting)
        self._update_all(encoding)

    def _end(self, encoding: Encoding) -> None:
        """Drop an encoding that no sequence waits for."""
        del self._encodings[encoding.model, encoding.item.digest]
        worker = self.workers.get(encoding.worker)
        if worker is None:
            return
        self._outbox.append(
            WorkerMessage(worker.name, Revoke(worker.epoch, pack([encoding.id], "Q")))
        )

    def _running(self, worker: EncodeWorker) -> Encoding | None:
        """The encoding that a worker runs now: the first that was sent and is not answered."""
        number = next(iter(worker.in_flight), None)
        return next((e for e in self if e.id == number and not e.done), None)

    def _give_up_queued(self) -> None:
        """Leave items to the prefill workers where no encode worker is left."""
        for encoding in [e for e in self if not e.worker and not self.serving(e.model)]:
            for sequence in list(encoding.waiting):
                self._leave(encoding, sequence)
                self._update(sequence)

    def _count_death(self, suspect: Encoding) -> list[Sequence]:
        suspect.deaths += 1
        return list(suspect.waiting) if suspect.deaths >= _MOST_DEATHS else []

    def _update_all(self, encoding: Encoding) -> None:
        for sequence in encoding.waiting:
            self._update(sequence)

    def _update(self, sequence: Sequence) -> None:
        sequence.num_awaited = self._awaited(sequence)

    def _awaited(self, sequence: Sequence) -> int:
        """Number of encodings and transfers that a sequence waits for."""
        here = sequence.media_worker
        encoding = sum(not e.done and here not in e.pulled_by for e in self.of(sequence))
        return encoding + sum(sequence in pull.waiting for pull in self._pulls.values())


def _distinct(media: tuple[Media, ...]) -> list[Media]:
    """The last of all items with one digest, which is the last to be computed."""
    return list({item.digest: item for item in media}.values())


def _token(number: int, source: EncodeWorker) -> bytes:
    """16 bytes, derived from the source's epoch, which is random and secret."""
    parts = ("media", number, source.name, source.epoch)
    return blake2b(repr(parts).encode(), digest_size=16).digest()


__all__ = ["Encoding", "EncodingCounters", "MediaEncodings"]
