"""EncodingWaits: which sequences wait for which encodings, and how far each may go meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from baton_scheduler.disaggregation.embedding_pulls import EmbeddingPulls
from baton_scheduler.disaggregation.encoding import Encoding, EncodingWait
from baton_scheduler.sequence import UNLIMITED, Sequence
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker


class EncodingWaits:
    """Encodings in progress by model and key, and the sequences that wait for them.

    Args:
        pulls: transfers of embeddings, which sequences wait for too.
        ended: called with an encoding that no sequence waits for any more.
    """

    def __init__(self, pulls: EmbeddingPulls, ended: Callable[[Encoding], None]) -> None:
        self._pulls = pulls
        self._ended = ended
        self._encodings: dict[tuple[str, bytes], Encoding] = {}
        self._waits: dict[int, EncodingWait] = {}
        """Arrival number of a sequence -> encodings that it waits for."""
        self._advanced: dict[int, Sequence] = {}
        """Running sequences whose prefill limit has changed, by arrival number."""

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._encodings.values())

    def get(self, model: str, key: bytes) -> Encoding | None:
        """The encoding of an item under its key."""
        return self._encodings.get((model, key))

    def of(self, sequence: Sequence) -> list[Encoding]:
        """Encodings that a sequence waits for."""
        wait = self._waits.get(sequence.arrival)
        return [] if wait is None else list(wait.encodings)

    def running(self, fleet: Fleet) -> list[tuple[Sequence, Worker, Encoding]]:
        """Encodings awaited by sequences that have started on a worker of the fleet."""
        return [
            (wait.sequence, worker, encoding)
            for wait in self._waits.values()
            if (worker := fleet.get(wait.sequence.worker)) is not None
            for encoding in wait.encodings
        ]

    def num_queued_tokens(self, model: str) -> int:
        """Number of embeddings queued for the encode workers of a model."""
        queued = (e for e in self if not e.worker and (model == e.model or not e.model))
        return sum(encoding.item.num_encoded for encoding in queued)

    # Who waits.

    def add(self, wait: EncodingWait, encoding: Encoding) -> None:
        """Let a sequence wait for an encoding."""
        self._encodings.setdefault((encoding.model, encoding.item.digest), encoding)
        if wait.sequence not in encoding.waiting:
            encoding.waiting.append(wait.sequence)
            self._waits.setdefault(wait.sequence.arrival, wait).encodings.append(encoding)

    def leave(self, encoding: Encoding, sequence: Sequence) -> None:
        """Remove a sequence from the waiting list of an encoding; the encoding ends with the last
        one."""
        encoding.waiting.remove(sequence)
        wait = self._waits[sequence.arrival]
        wait.encodings.remove(encoding)
        if not wait.encodings:
            del self._waits[sequence.arrival]
        if not encoding.waiting:
            del self._encodings[encoding.model, encoding.item.digest]
            self._ended(encoding)

    def give_up(self, encoding: Encoding) -> None:
        """Leave an item to the workers that prefill."""
        for sequence in list(encoding.waiting):
            self.leave(encoding, sequence)
            self.update(sequence)

    def release(self, sequence: Sequence) -> None:
        """Stop waiting for the encodings of a sequence that is queued anew or has ended."""
        for encoding in self.of(sequence):
            self.leave(encoding, sequence)
        self._pulls.forget(sequence)
        self._advanced.pop(sequence.arrival, None)
        sequence.num_awaited, sequence.media_worker, sequence.num_pulls = 0, "", 0
        sequence.prefill_limit = UNLIMITED

    # How far a sequence may go.

    def is_worth_starting(self, sequence: Sequence, missing: list[Encoding]) -> bool:
        """Whether a sequence starts before the `missing` encodings are done."""
        wait = self._waits.get(sequence.arrival)
        return wait is None or wait.is_worth_starting(missing)

    def limit(self, sequence: Sequence, missing: list[Encoding]) -> int:
        """Number of leading tokens of a sequence that need none of the `missing` encodings."""
        wait = self._waits.get(sequence.arrival)
        return UNLIMITED if wait is None else wait.limit(missing)

    def update(self, sequence: Sequence) -> None:
        """Follow a change of an encoding or a transfer that a sequence waits for."""
        if sequence.worker is None:
            sequence.num_awaited = self._awaited(sequence)
        else:
            sequence.prefill_limit = self.limit(sequence, self.of(sequence))
            self._advanced[sequence.arrival] = sequence

    def update_all(self, encoding: Encoding) -> None:
        """`update` of all sequences that wait for an encoding."""
        for sequence in encoding.waiting:
            self.update(sequence)

    def advance(self, fleet: Fleet) -> None:
        """Let sequences be prefilled up to the media that they still wait for."""
        for sequence in self._advanced.values():
            worker = fleet.get(sequence.worker)
            if worker is not None:
                worker.batch.raise_prefill_limit(sequence.slot, sequence.prefill_limit)
        self._advanced.clear()

    def _awaited(self, sequence: Sequence) -> int:
        """Number of encodings and transfers that a sequence waits for before it starts."""
        here = sequence.media_worker
        missing = [e for e in self.of(sequence) if not e.done and here not in e.pulled_by]
        pulls = len(self._pulls.waited_for(sequence))
        return pulls + (0 if self.is_worth_starting(sequence, missing) else len(missing))

    # Inspection.

    def layout(self) -> tuple[object, ...]:
        """Everything, for the state's digest."""
        rows = [(key, encoding.layout()) for key, encoding in self._encodings.items()]
        waits = [(arrival, wait.num_cached) for arrival, wait in self._waits.items()]
        return rows, waits, list(self._advanced)

    def check(self) -> None:
        """Assert that sequences wait for exactly what is in progress for them."""
        for encoding in self:
            assert encoding.waiting, "no sequence waits for an encoding"
            assert all(encoding in self.of(sequence) for sequence in encoding.waiting)
            assert not encoding.done or encoding.worker
            for sequence in encoding.waiting:
                self._check(sequence)

    def _check(self, sequence: Sequence) -> None:
        assert not sequence.ended
        if sequence.worker is None:
            assert sequence.num_awaited == self._awaited(sequence)
        else:
            assert sequence.prefill_limit == self.limit(sequence, self.of(sequence))


__all__ = ["EncodingWaits"]
