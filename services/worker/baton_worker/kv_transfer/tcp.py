"""Blocks in the messages themselves: over TCP, or over Unix sockets on one host. Always there."""

from __future__ import annotations

from typing import Literal

import numpy as np

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.transport import Bytes, CarriageError, Size


class Tcp:
    """Needs nothing that the messages do not need. See `transport.Transport`."""

    reach: Literal["host", "network"] = "network"

    def __init__(self, config: Config) -> None:
        pass

    def send(self, size: Size) -> TcpSender:
        """Memory in which blocks are put together."""
        return TcpSender(size)

    def receive(self, terms: bytes, size: Size) -> TcpReceiver:
        """Blocks as they come."""
        return TcpReceiver()

    def close(self) -> None:
        """Nothing is shared."""


class TcpSender:
    """One place is enough: a block is copied into its message at once."""

    terms = b""

    def __init__(self, size: Size) -> None:
        self._memory = np.empty(size.place_bytes, np.uint8)

    def room(self, place: int, size: int) -> Bytes:
        """See `transport.Sender`."""
        return self._memory[:size]

    def data(self, place: int, size: int) -> bytes:
        """The block."""
        return self._memory[:size].tobytes()

    def tend(self) -> None:
        """ZeroMQ has threads of its own."""

    def close(self) -> None:
        """Nothing to give back."""


class TcpReceiver:
    """The target's half."""

    def take(self, block: Block, place: int) -> Bytes:
        """See `transport.Receiver`."""
        if len(block.data) != block.size:
            raise CarriageError(f"a block of {block.size} bytes came with {len(block.data)}")
        return np.frombuffer(block.data, np.uint8)

    def close(self) -> None:
        """Nothing to give back."""
