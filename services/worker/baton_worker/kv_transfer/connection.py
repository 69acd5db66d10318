"""The target's end of a lane: one connection to one source, and the transport they agreed on."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import TypeAlias

from xxhash import xxh3_64_intdigest

from baton.logs import logger
from baton.net.curve import CurveKeys
from baton.net.sockets import Client, wait
from baton.net.topology import PAGES
from baton.protocol import Block, Close, Fetch, Message, Missing, Open, Opened, Pull
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.transport import (
    Bytes,
    CarriageError,
    Receiver,
    Size,
    TransferError,
    Transport,
    offers,
)
from baton_worker.kv_transfer.wire_format import (
    Extent,
    block_bytes,
    dtype_name,
    layout,
    place_bytes,
)

PATIENCE_SECONDS = 5.0
"""How long a source may send nothing, or nothing but that it knows no such grant, before the pull
has failed."""
_AGAIN_SECONDS = 0.002
"""Pause before asking again for what the source has not been granted yet."""
_MOST_PLACES = 64
_REASONS = {"refused": "the source refuses", "stale": "the grant is of another epoch"}
_numbers = itertools.count(1)

Asked: TypeAlias = dict[tuple[int, int], tuple[Extent, int]]
"""By layer and first token: what was asked for, and the place where it will be."""
Put: TypeAlias = Callable[[Extent, Bytes], None]

log = logger(__name__)


class TransferConnection:
    """Life cycle: `open` once, `carry` per pull, `close`. For one pull at a time.

    A lane that a pull has failed on is closed and never used again: what may still come for that
    pull finds nobody.
    """

    def __init__(
        self, cache: KVCache, name: str, address: str, stopped: Event, keys: CurveKeys | None = None
    ) -> None:
        identity = f"{name}/{next(_numbers)}".encode()
        self.address = address
        self.transport = ""
        self.used = time.monotonic()
        self._cache, self._stopped = cache, stopped
        self._client = Client(PAGES, address, identity, keys)
        self._receiver: Receiver | None = None
        self._size = Size(0, 0)
        self._advanced = time.monotonic()

    def open(self, pull: Pull, transports: dict[str, Transport], host: str) -> None:
        """Agree with the source on one of the transports, best first. Raises `TransferError`."""
        mine = tuple(offers(transports).values())
        wish = Open(pull.id, pull.source_epoch, pull.token, mine, host, layout(self._cache))
        opened = self._agree(wish)
        if opened.transport not in transports:
            raise TransferError(f"the source wants {opened.transport!r}, which was not offered")
        self._size = Size(opened.places, opened.place_bytes)
        if not 0 < opened.places <= _MOST_PLACES or opened.place_bytes != place_bytes(self._cache):
            raise TransferError("the source offers a lane of the wrong size")
        self.transport = opened.transport
        self._receiver = transports[self.transport].receive(opened.terms, self._size)
        log.info(
            "keys of %s come over %s (offered: %s)",
            self.address, self.transport, ", ".join(transports),
        )  # fmt: skip

    def carry(self, pull: Pull, extents: list[Extent], put: Put) -> int:
        """Hand every block of a pull to `put`, in any order. Returns how many bytes they had.

        Raises:
            TransferError: not all of them came, or not as they were sent.
        """
        waiting, free = deque(extents), list(range(self._size.places))
        asked: Asked = {}
        size, self._advanced = 0, time.monotonic()
        while waiting or asked:
            self._ask(pull, waiting, free, asked)
            for message in self._hear():
                extent, place = _claim(message, asked)
                free.append(place)
                if isinstance(message, Block):
                    put(extent, self._take(message, extent, place))
                    size, self._advanced = size + message.size, time.monotonic()
                else:
                    waiting.append(extent)
                    time.sleep(_AGAIN_SECONDS)
        self.used = time.monotonic()
        return size

    def close(self) -> None:
        """Tell the source, and give back what the transport has. Raises nothing."""
        try:
            if self._receiver is not None:
                self._receiver.close()
        except Exception:  # The library's own affair: nobody uses the lane again.
            log.exception("a lane over %s could not be closed", self.transport)
        self._receiver = None
        self._client.send(Close())
        self._client.close()

    def _agree(self, wish: Open) -> Opened:
        sent = False
        while True:
            sent = sent or self._client.send(wish)
            for message in self._hear():
                if not isinstance(message, Opened):
                    raise TransferError("the source sends what was not asked for")
                if not message.reason:
                    return message
                if message.reason != "unknown":
                    raise TransferError(_REASONS.get(message.reason, message.reason))
                time.sleep(_AGAIN_SECONDS)
                sent = False

    def _hear(self) -> list[Message]:
        """What has come within a short time. Raises `TransferError` when nothing advances."""
        wait((self._client,), _AGAIN_SECONDS)
        if self._stopped.is_set():
            raise TransferError("this worker has left")
        heard = [received.message for received in self._client.drain()]
        late = time.monotonic() - self._advanced > PATIENCE_SECONDS
        if late and all(getattr(message, "reason", "") == "unknown" for message in heard):
            raise TransferError("the source sends nothing")
        return heard

    def _ask(self, pull: Pull, waiting: deque[Extent], free: list[int], asked: Asked) -> None:
        while waiting and free:
            extent, place = waiting[0], free[-1]
            fetch = Fetch(
                pull.id,
                pull.token,
                extent.layer,
                extent.start,
                extent.end,
                pull.source_epoch,
                place,
            )
            if not self._client.send(fetch):  # Not connected yet.
                return
            asked[extent.layer, extent.start] = waiting.popleft(), free.pop()

    def _take(self, block: Block, extent: Extent, place: int) -> Bytes:
        """The bytes of a block, which are those that the source has read."""
        if block.dtype != dtype_name(self._cache, extent.layer):
            raise TransferError(f"the source stores {block.dtype}")
        if block.size != block_bytes(self._cache, extent):
            raise TransferError(f"a block has the wrong size: {block.size} bytes")
        assert self._receiver is not None
        taken = self._receiver.take(block, place)
        if xxh3_64_intdigest(taken.data) != block.checksum:
            raise CarriageError("a block is corrupt")
        return taken


def _claim(message: Message, asked: Asked) -> tuple[Extent, int]:
    """What the message answers. Raises `TransferError` for anything but a block that was asked
    for, or the news that it is not granted yet."""
    if not isinstance(message, Block | Missing):
        raise TransferError("the source sends what was not asked for")
    found = asked.pop((message.layer, message.start), None)
    if found is None:
        raise TransferError("the source sends what was not asked for")
    if isinstance(message, Missing) and message.reason != "unknown":
        raise TransferError(_REASONS[message.reason])
    return found
