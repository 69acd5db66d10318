"""MediaEncodings: media of waiting sequences are encoded on workers of the role `encode`.

    arrives --> queued --> encoding --> encoded --> pulled by the worker that prefills --> starts
                  ^  EncodeMedia  MediaEncoded  Pull, Pulled
                  +---- the encode worker is lost

A sequence waits until its encodings are done and its embeddings are on the worker where it starts;
others start meanwhile. One whose first media are encoded starts while the last ones are, and its
prefill stops before the first item that it lacks; the embeddings follow it to its worker:

    text | image 1 | text | image 2 | text        image 1 is pulled, image 2 is being encoded
    [------ prefill ------]                       `Sequence.prefill_limit`

An item is encoded once for all sequences that wait for it under one key.
The pixels still travel with the sequence, and its worker encodes what it lacks, so a lost encode
worker, a failed transfer or an evicted embedding costs time only.

An item that crashes encode workers is refused: the worker that prefills would crash too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from baton.protocol import EncodeMedia, Media, MediaEncoded, Pulled, Revoke, WorkerInfo
from baton.protocol.token_columns import pack
from baton_scheduler.block_hashes import media_key
from baton_scheduler.disaggregation.embedding_pulls import (
    EmbeddingPull,
    EmbeddingPulls,
    pull_token,
)
from baton_scheduler.disaggregation.encoding import Encoding, EncodingCounters, EncodingWait
from baton_scheduler.disaggregation.encoding_waits import EncodingWaits
from baton_scheduler.events import Cause, Decision, WorkerMessage
from baton_scheduler.placement.encode_cost import worth_remote_encoding
from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.encode_workers import EncodeWorkers
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker

_MOST_PULLS = 2
"""Workers to which the embeddings of one sequence are sent; after that it starts without them."""
_MOST_MISSES = 2
"""Times that pixels may be missing before the prefill worker encodes the item."""
_MOST_DEATHS = 2
"""Encode workers that an item may crash before it is refused."""


class MediaEncodings:
    """Encode workers, and all encodings and transfers of embeddings in progress."""

    def __init__(self, links: TransferCost, workers: EncodeWorkers) -> None:
        self._links = links
        self.workers = workers
        self.counters = EncodingCounters()
        self._count = 0
        self._pulls = EmbeddingPulls()
        self._waits = EncodingWaits(self._pulls, self._revoke)
        self._outbox: list[WorkerMessage] = []
        self._unexplained: dict[int, Encoding] = {}
        """Epoch of a lost encode worker -> the item it was encoding, until the cause of its exit is
        known."""

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._waits)

    def backlog(self, model: str) -> float:
        """Estimated seconds until the last queued item of a model is encoded."""
        return self.workers.backlog(model, self._waits.num_queued_tokens(model))

    def of(self, sequence: Sequence) -> list[Encoding]:
        """Encodings that a sequence waits for."""
        return self._waits.of(sequence)

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
        for pull in [pull for pull in self._pulls if pull.source == name]:
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
        for pull in [pull for pull in self._pulls if pull.target == name]:
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
        encoders = self.workers.usable(sequence.model, local)
        if not encoders:
            return
        num_cached = max((worker.kv.num_cached_tokens(sequence) for worker in local), default=0)
        wait = EncodingWait(sequence, num_cached)
        for item in _distinct(sequence.submit.media):
            if item.is_needed(num_cached) and not item.is_embeds:
                self._request(wait, item, encoders, local)
        self._waits.update(sequence)

    def pull(self, sequence: Sequence, worker: Worker) -> bool:
        """Send the embeddings of a sequence to the worker where it is about to start. Returns
        whether the sequence must wait for them."""
        mine = [e for e in self.of(sequence) if e.done and worker.name not in e.pulled_by]
        if not mine or not self.workers.accepts(worker, mine[0].worker):
            return False
        if sequence.num_pulls >= _MOST_PULLS or self._can_begin(sequence, worker):
            return False
        needed = _needed(sequence, worker)
        missing = [encoding for encoding in mine if encoding.item.digest in needed]
        for encoding in missing:
            self._pull(encoding, sequence, worker)
        if missing:
            sequence.num_pulls += 1
            sequence.media_worker = worker.name
        self._waits.update(sequence)
        return sequence.num_awaited > 0

    def start(self, sequence: Sequence, worker: Worker) -> None:
        """A sequence starts on a worker. It keeps waiting for media that are being encoded, unless
        the worker encodes what it lacks itself."""
        missing = self._coming(sequence, worker)
        for encoding in self.of(sequence):
            if encoding not in missing:
                self._waits.leave(encoding, sequence)
        self._pulls.forget(sequence)
        sequence.num_awaited = sequence.num_pulls = 0
        sequence.media_worker = worker.name if missing else ""
        sequence.prefill_limit = self._waits.limit(sequence, missing)

    def release(self, sequence: Sequence) -> None:
        """Stop waiting for the encodings of a sequence that is queued anew or has ended."""
        self._waits.release(sequence)

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
        self._waits.update_all(encoding)
        return []

    def pulled(self, name: str, message: Pulled, worker: Worker | None) -> None:
        """A pull of embeddings has ended; `worker` is its target, if still present."""
        pull = self._pulls.find(name, message)
        if pull is None:
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

    def dispatch(self, now: float, fleet: Fleet) -> list[Decision]:
        """Messages to workers: revoked encodings, pulls, and new work for free encode workers.
        Sequences that run on workers of the fleet may go on behind media that have arrived."""
        self._give_up_queued()
        self._follow(fleet)
        decisions: list[Decision] = [*self._outbox]
        self._outbox.clear()
        for encoding in [e for e in self if not e.worker]:
            free = self.workers.least_loaded(encoding.model)
            if free is not None:
                decisions.append(self._send(encoding, free, now))
        for worker in self.workers.values():
            worker.tokens.tick(now)
        self._waits.advance(fleet)
        return decisions

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        workers = [
            (w.name, w.epoch, w.draining, w.in_flight, w.encode_cost.line)
            for w in self.workers.values()
        ]
        return repr((self._count, self._waits.layout(), self._pulls.layout(), workers)).encode()

    def check(self) -> None:
        """Assert that sequences wait for exactly what is in progress for them."""
        self._waits.check()
        assert all(not encoding.worker or encoding.worker in self.workers for encoding in self)
        assert all(pull.source in self.workers for pull in self._pulls)

    # One item.

    def _request(
        self, wait: EncodingWait, item: Media, encoders: list[EncodeWorker], local: list[Worker]
    ) -> None:
        sequence = wait.sequence
        key = media_key(sequence.submit, item.digest, sequence.weights)
        encoding = self._waits.get(sequence.model, key)
        if encoding is not None or any(worker.has_media(key) for worker in local):
            self.counters.shared += 1
        elif self._worth(sequence.model, item, encoders, local):
            keyed = msgspec.structs.replace(item, digest=key)
            encoding = Encoding(sequence.model, keyed, digest=item.digest)
        if encoding is not None:
            self._waits.add(wait, encoding)

    def _worth(
        self, model: str, item: Media, encoders: list[EncodeWorker], local: list[Worker]
    ) -> bool:
        sizes = [
            encoding.num_bytes / encoding.item.num_encoded for encoding in self if encoding.done
        ]
        num_bytes = item.num_encoded * (sizes[-1] if sizes else 0.0)
        ahead = self._waits.num_queued_tokens(model)
        return worth_remote_encoding(
            item.num_encoded, num_bytes, ahead, encoders, local, self._links
        )

    def _send(self, encoding: Encoding, worker: EncodeWorker, now: float) -> Decision:
        self._count += 1
        encoding.id, encoding.worker = self._count, worker.name
        encoding.take_pixels()
        worker.begin(encoding.id, encoding.item.num_encoded, now)
        token = pull_token(encoding.id, worker)
        self._waits.update_all(encoding)
        return WorkerMessage(
            worker.name, EncodeMedia(worker.epoch, encoding.id, token, encoding.item)
        )

    def _pull(self, encoding: Encoding, sequence: Sequence, worker: Worker) -> None:
        message = self._pulls.add(encoding, sequence, self.workers[encoding.worker], worker)
        if message is not None:
            self._outbox.append(WorkerMessage(worker.name, message))

    def _drop(self, pull: EmbeddingPull) -> None:
        self._pulls.remove(pull)
        for sequence in pull.waiting:
            if sequence.worker is not None:  # Its worker encodes the item if it did not arrive.
                self._waits.leave(pull.encoding, sequence)
            self._waits.update(sequence)

    def _find_pixels(self, encoding: Encoding) -> None:
        """The request that brought the pixels has ended: use the pixels of another waiting
        sequence, or leave the item to the prefill workers."""
        encoding.misses += 1
        self._requeue(encoding)
        if encoding.misses >= _MOST_MISSES:
            self._waits.give_up(encoding)

    def _requeue(self, encoding: Encoding) -> None:
        """Encode again for sequences whose embeddings have not arrived."""
        encoding.worker, encoding.done, encoding.id = "", False, 0
        for sequence in [s for s in encoding.waiting if s.media_worker in encoding.pulled_by]:
            self._waits.leave(encoding, sequence)
        self.counters.retried += bool(encoding.waiting)
        self._waits.update_all(encoding)

    def _revoke(self, encoding: Encoding) -> None:
        """No sequence waits for an encoding any more: its worker frees what it has of it."""
        worker = self.workers.get(encoding.worker)
        if worker is not None:
            revoked = Revoke(worker.epoch, pack([encoding.id], "Q"))
            self._outbox.append(WorkerMessage(worker.name, revoked))

    def _running(self, worker: EncodeWorker) -> Encoding | None:
        """The encoding that a worker runs now: the first that was sent and is not answered."""
        number = next(iter(worker.in_flight), None)
        return next((e for e in self if e.id == number and not e.done), None)

    def _give_up_queued(self) -> None:
        """Leave items to the prefill workers where no encode worker is left."""
        for encoding in [e for e in self if not e.worker and not self.workers.serving(e.model)]:
            self._waits.give_up(encoding)

    def _count_death(self, suspect: Encoding) -> list[Sequence]:
        suspect.deaths += 1
        return list(suspect.waiting) if suspect.deaths >= _MOST_DEATHS else []

    # Sequences that start before all their media are encoded.

    def _can_begin(self, sequence: Sequence, worker: Worker) -> bool:
        """Whether a worker can prefill the first tokens of a sequence with the embeddings that it
        has pulled."""
        missing = [e for e in self.of(sequence) if worker.name not in e.pulled_by]
        return sequence.media_worker == worker.name and self._waits.is_worth_starting(
            sequence, missing
        )

    def _coming(self, sequence: Sequence, worker: Worker) -> list[Encoding]:
        """The encodings whose embeddings follow a sequence that starts on a worker."""
        if sequence.cell or sequence.single_step:
            return []
        needed, failed = _needed(sequence, worker), sequence.num_pulls >= _MOST_PULLS
        return [
            encoding
            for encoding in self.of(sequence)
            if encoding.item.digest in needed
            and worker.name not in encoding.pulled_by
            and not (encoding.done and failed)
            and self.workers.accepts(worker, encoding.worker)
        ]

    def _follow(self, fleet: Fleet) -> None:
        """Send embeddings that are done to the workers of the sequences that started before."""
        for sequence, worker, encoding in self._waits.running(fleet):
            if worker.name in encoding.pulled_by or not self.workers.accepts(
                worker, encoding.worker
            ):
                self._waits.leave(encoding, sequence)
                self._waits.update(sequence)
            elif encoding.done and encoding not in self._pulls.waited_for(sequence):
                self._pull(encoding, sequence, worker)


def _needed(sequence: Sequence, worker: Worker) -> set[bytes]:
    """Keys of the media of a sequence that a worker needs behind its cached tokens."""
    num_cached = worker.kv.num_cached_tokens(sequence)
    media = [item for item in sequence.submit.media if item.is_needed(num_cached)]
    return {media_key(sequence.submit, item.digest, sequence.weights) for item in media}


def _distinct(media: tuple[Media, ...]) -> list[Media]:
    """The last of all items with one digest, which is the last to be computed."""
    return list({item.digest: item for item in media}.values())


__all__ = ["Encoding", "EncodingCounters", "MediaEncodings"]
