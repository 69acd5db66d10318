"""Pixels of one request in shared memory for the lifetime of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from baton.process.pixel_store import PixelStore
from baton.protocol import Media
from baton_gateway.generation.sequence import Sequence


class PixelLease:
    """Life cycle: `share` before the sequences are submitted, `release` once they have ended."""

    def __init__(self, open_store: Callable[[], PixelStore | None]) -> None:
        """`open_store` is called for the first item; None means that pixels are sent in
        messages."""
        self._open_store = open_store
        self._store: PixelStore | None = None
        self._shared: dict[bytes, Media] = {}
        """Digest -> item whose pixels are in shared memory."""
        self._tokens: list[bytes] = []

    async def share(self, sequences: Iterable[Sequence]) -> None:
        """Replace the pixels of all sequences by handles, one per item.

        Raises:
            Unavailable: shared memory is full of other requests' pixels.
        """
        with_media = [sequence for sequence in sequences if sequence.media]
        self._store = store = self._open_store() if with_media else None
        for sequence in with_media if store is not None else ():
            assert store is not None
            sequence.media = tuple([await self._handled(item, store) for item in sequence.media])

    def release(self) -> None:
        """Release the pixels; workers keep what they have mapped."""
        for token in self._tokens:
            assert self._store is not None
            self._store.drop(token)

    async def _handled(self, item: Media, store: PixelStore) -> Media:
        known = self._shared.get(item.digest)
        if known is None:
            pixels = item.pixels
            token = store.reserve(len(pixels.data))
            self._tokens.append(token)
            # Copying megabytes in the event loop would delay all other streams.
            await asyncio.to_thread(store.put, token, pixels.data)
            handled = replace(
                pixels, data=b"", token=token, address=store.address, remote=store.remote
            )
            known = self._shared[item.digest] = replace(item, pixels=handled)
        return replace(item, pixels=known.pixels)
