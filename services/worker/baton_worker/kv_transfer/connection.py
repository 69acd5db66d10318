"""The target's side of a connection to one source, over the negotiated transport."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from baton.logs import logger
from baton.net.curve import CurveKeys
from baton.net.sockets import Client, wait
from baton.net.topology import PAGES
from baton.protocol import Block, Close, Fetch, Message, Missing, Open, Opened, Pull
from baton_worker.kv_transfer.content import Content
from baton_worker.kv_transfer.transport import (
    BlockBuffer,
    Receiver,
    Size,
    TransferError,
    Transport,
    TransportError,
    offers,
)
from baton_worker.kv_transfer.wire_format import Extent

TIMEOUT_SECONDS = 5.0
"""A pull fails if the source sends nothing, or only "unknown grant", for this many seconds."""
_RETRY_SECONDS = 0.002
"""Pause before a retry for tokens that the source has not been granted yet."""
_MOST_PLACES = 64
_REASONS = {"refused": "the source refuses", "stale": "the grant is of another epoch"}
_numbers = itertools.count(1)

Outstanding: TypeAlias = dict[tuple[int, int], tuple[Extent, int]]
"""Outstanding requests by layer and first token: the extent, and its slot in the transfer buffer.
"""
Put: TypeAlias = Callable[[Extent, BlockBuffer], None]

log = logger(__name__)


class TransferConnection:
    """Life cycle: `open` once, `run` per pull, `close`. Serves one pull at a time.

    After a failed pull the connection is closed and never reused, so that late messages of that
    pull are dropped.
    """

    def __init__(
        self,
        content: Content,
        name: str,
        address: str,
        stopped: Event,
        keys: CurveKeys | None = None,
    ) -> None:
        identity = f"{name}/{next(_numbers)}".encode()
        self.address = address
        self.transport = ""
        self.used = time.monotonic()
        self._content, self._stopped = content, stopped
        self._client = Client(PAGES, address, identity, keys)
        self._receiver: Receiver | None = None
        self._size = Size(0, 0)
        self._advanced = time.monotonic()

    def open(self, pull: Pull, transports: dict[str, Transport], host: str) -> None:
        """Negotiate a transport with the source, in order of preference. Raises `TransferError`."""
        mine = tuple(offers(transports).values())
        request = Open(pull.id, pull.source_epoch, pull.token, mine, host, self._content.layout)
        opened = self._agree(request)
        if opened.transport not in transports:
            raise TransferError(f"the source wants {opened.transport!r}, which was not offered")
        self._size = Size(opened.places, opened.place_bytes)
        if not 0 < opened.places <= _MOST_PLACES or opened.place_bytes != self._content.place_bytes:
            raise TransferError("the source offers a transfer buffer of the wrong size")
        self.transport = opened.transport
        self._receiver = transports[self.transport].receive(opened.terms, self._size)
        log.info(
            "KV of %s comes over %s (offered: %s)",
            self.address, self.transport, ", ".join(transports),
        )  # fmt: skip

    def run(self, pull: Pull, extents: list[Extent], put: Put) -> int:
        """Pass every block of a pull to `put`, in any order. Returns the number of bytes.

        Raises:
            TransferError: a block is missing or corrupt.
        """
        waiting, free = deque(extents), list(range(self._size.places))
        outstanding: Outstanding = {}
        size, self._advanced = 0, time.monotonic()
        while waiting or outstanding:
            self._ask(pull, waiting, free, outstanding)
            for message in self._receive():
                extent, place = _claim(message, outstanding)
                free.append(place)
                if isinstance(message, Block):
                    put(extent, self._take(message, extent, place))
                    size, self._advanced = size + message.size, time.monotonic()
                else:
                    waiting.append(extent)
                    time.sleep(_RETRY_SECONDS)
        self.used = time.monotonic()
        return size

    def close(self) -> None:
        """Notify the source and release the transport's resources. Raises nothing."""
        try:
            if self._receiver is not None:
                self._receiver.close()
        except Exception:  # The library's internal error; this connection is not used again.
            log.exception("a connection over %s could not be closed", self.transport)
        self._receiver = None
        self._client.send(Close())
        self._client.close()

    def _agree(self, request: Open) -> Opened:
        sent = False
        while True:
            sent = sent or self._client.send(request)
            for message in self._receive():
                if not isinstance(message, Opened):
                    raise TransferError("the source sends what was not asked for")
                if not message.reason:
                    return message
                if message.reason != "unknown":
                    raise TransferError(_REASONS.get(message.reason, message.reason))
                time.sleep(_RETRY_SECONDS)
                sent = False

    def _receive(self) -> list[Message]:
        """Messages received within a short time. Raises `TransferError` if there is no progress."""
        wait((self._client,), _RETRY_SECONDS)
        if self._stopped.is_set():
            raise TransferError("this worker has left")
        messages = [received.message for received in self._client.drain()]
        late = time.monotonic() - self._advanced > TIMEOUT_SECONDS
        if late and all(getattr(message, "reason", "") == "unknown" for message in messages):
            raise TransferError("the source sends nothing")
        return messages

    def _ask(
        self, pull: Pull, waiting: deque[Extent], free: list[int], outstanding: Outstanding
    ) -> None:
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
            outstanding[extent.layer, extent.start] = waiting.popleft(), free.pop()

    def _take(self, block: Block, extent: Extent, place: int) -> BlockBuffer:
        """The bytes of a block; on the host they are verified against the checksum of the
        source."""
        if block.dtype != self._content.dtype_name(extent.layer):
            raise TransferError(f"the source stores {block.dtype}")
        if block.size != self._content.block_bytes(extent):
            raise TransferError(f"a block has the wrong size: {block.size} bytes")
        assert self._receiver is not None
        data = self._receiver.take(block, place)
        if isinstance(data, np.ndarray) and xxh3_64_intdigest(data.data) != block.checksum:
            raise TransportError("a block is corrupt")
        return data


def _claim(message: Message, outstanding: Outstanding) -> tuple[Extent, int]:
    """The request that the message answers. Raises `TransferError` for any message but a requested
    block or "not granted yet"."""
    if not isinstance(message, Block | Missing):
        raise TransferError("the source sends what was not asked for")
    request = outstanding.pop((message.layer, message.start), None)
    if request is None:
        raise TransferError("the source sends what was not asked for")
    if isinstance(message, Missing) and message.reason != "unknown":
        raise TransferError(_REASONS[message.reason])
    return request
