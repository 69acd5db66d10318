"""Encodings of media on workers of the role `encode`, and the sequences that wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from baton.protocol import Media
from baton_scheduler.sequence import UNLIMITED, Sequence

LEAST_PREFILL = 128
"""Fewest tokens for which a sequence starts before all its media are encoded; with fewer, another
step costs more than it saves."""


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

    def layout(self) -> tuple[object, ...]:
        """Everything that changes, for the state's digest."""
        waiting = [sequence.arrival for sequence in self.waiting]
        return self.id, self.worker, self.done, self.deaths, sorted(self.pulled_by), waiting


@dataclass(slots=True, eq=False)
class EncodingWait:
    """The encodings that one sequence waits for."""

    sequence: Sequence
    num_cached: int
    """Prompt tokens that were in a prefix cache when it was queued."""
    encodings: list[Encoding] = field(default_factory=list)

    def limit(self, missing: Iterable[Encoding]) -> int:
        """Number of leading tokens that need none of the `missing` encodings."""
        digests = {encoding.digest for encoding in missing}
        media = self.sequence.submit.media
        return min((item.start for item in media if item.digest in digests), default=UNLIMITED)

    def is_worth_starting(self, missing: list[Encoding]) -> bool:
        """Whether the sequence starts before the `missing` encodings are done: they are with encode
        workers, so it does not hold its slot for long, and enough tokens stand before them."""
        if self.sequence.single_step or not all(encoding.worker for encoding in missing):
            return False
        return self.limit(missing) - self.num_cached >= LEAST_PREFILL


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


__all__ = ["Encoding", "EncodingCounters", "EncodingWait"]
