"""Transfers of embeddings from encode workers to the workers where sequences start or run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from baton.protocol import Pull, Pulled
from baton_scheduler.disaggregation.encoding import Encoding
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker


@dataclass(slots=True, eq=False)
class EmbeddingPull:
    """Embeddings on their way to a worker."""

    encoding: Encoding
    id: int
    source: str
    target: str
    target_epoch: int
    waiting: list[Sequence] = field(default_factory=list)


class EmbeddingPulls:
    """All transfers of embeddings in progress: one per item and worker, for all its sequences."""

    def __init__(self) -> None:
        self._pulls: dict[tuple[str, int], EmbeddingPull] = {}
        """Pulls by target and number of the encoding."""

    def __iter__(self) -> Iterator[EmbeddingPull]:
        return iter(list(self._pulls.values()))

    def add(
        self, encoding: Encoding, sequence: Sequence, source: EncodeWorker, target: Worker
    ) -> Pull | None:
        """Let a sequence wait for the embeddings of an item. Returns the message to their target;
        None if they are on their way."""
        pull = self._pulls.get((target.name, encoding.id))
        if pull is not None:
            pull.waiting.append(sequence)
            return None
        self._pulls[target.name, encoding.id] = EmbeddingPull(
            encoding, encoding.id, source.name, target.name, target.epoch, [sequence]
        )
        return Pull(
            epoch=target.epoch,
            id=encoding.id,
            address=source.info.kv_address,
            token=pull_token(encoding.id, source),
            start=0,
            end=encoding.item.num_encoded,
            pages=b"",
            source_epoch=source.epoch,
            digest=encoding.item.digest,
        )

    def remove(self, pull: EmbeddingPull) -> None:
        """A transfer has ended, or cannot end."""
        del self._pulls[pull.target, pull.id]

    def find(self, target: str, message: Pulled) -> EmbeddingPull | None:
        """The transfer that a message of its target ends; None for one of an earlier epoch."""
        pull = self._pulls.get((target, message.id))
        return pull if pull is not None and pull.target_epoch == message.epoch else None

    def waited_for(self, sequence: Sequence) -> list[Encoding]:
        """The items whose embeddings are on their way for a sequence."""
        return [pull.encoding for pull in self if sequence in pull.waiting]

    def forget(self, sequence: Sequence) -> None:
        """A sequence waits for no transfer any more; those in progress go on."""
        for pull in self:
            if sequence in pull.waiting:
                pull.waiting.remove(sequence)

    def layout(self) -> list[object]:
        """Everything, for the state's digest."""
        return [(key, [s.arrival for s in pull.waiting]) for key, pull in self._pulls.items()]


def pull_token(number: int, source: EncodeWorker) -> bytes:
    """16 bytes that allow one pull, derived from the source's epoch, which is random and secret."""
    parts = ("media", number, source.name, source.epoch)
    return blake2b(repr(parts).encode(), digest_size=16).digest()


__all__ = ["EmbeddingPull", "EmbeddingPulls", "pull_token"]
