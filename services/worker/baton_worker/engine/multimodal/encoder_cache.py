"""Cache of encoder outputs by media digest."""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import Tensor


class EncoderCache:
    """Embeddings [n, hidden] of media items; LRU eviction. Items that running sequences need are
    pinned by `trim`, and may exceed the bound.

    Args:
        max_bytes: bound of unpinned items.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._held = max_bytes, dict[bytes, Tensor]()

    def __contains__(self, digest: object) -> bool:
        return digest in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_bytes(self) -> int:
        """Bytes of all embeddings."""
        return sum(embeddings.nbytes for embeddings in self._held.values())

    def get(self, digest: bytes) -> Tensor:
        """The embeddings of an item, which is now the one used last. Raises `KeyError`."""
        embeddings = self._held[digest] = self._held.pop(digest)
        return embeddings

    def put(self, digest: bytes, embeddings: Tensor) -> None:
        """Keep the embeddings of an item."""
        self._held[digest] = embeddings

    def discard(self, digests: Iterable[bytes]) -> None:
        """Remove these items, if they are there."""
        for digest in digests:
            self._held.pop(digest, None)

    def trim(self, pinned: Container[bytes]) -> None:
        """Evict items beyond the bound, except `pinned` ones."""
        excess = self.num_bytes - self._max_bytes
        for digest in list(self._held):
            if excess <= 0:
                return
            if digest not in pinned:
                excess -= self._held.pop(digest).nbytes
