"""Blocks within the messages, over TCP or Unix sockets. Always available."""

from __future__ import annotations

from typing import Literal

import numpy as np

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.transport import Bytes, Size, TransportError


class Tcp:
    """Has no requirements of its own. See `transport.Transport`."""

    reach: Literal["host", "network"] = "network"
    on_device = False

    def __init__(self, config: Config) -> None:
        pass

    def send(self, size: Size) -> TcpSender:
        """Memory in which blocks are assembled."""
        return TcpSender(size)

    def receive(self, terms: bytes, size: Size) -> TcpReceiver:
        """Blocks as received."""
        return TcpReceiver()

    def close(self) -> None:
        """No shared resources."""


class TcpSender:
    """A single buffer: each block is copied into its message at once."""

    terms = b""

    def __init__(self, size: Size) -> None:
        self._memory = np.empty(size.place_bytes, np.uint8)

    def view(self, place: int, size: int) -> Bytes:
        """See `transport.Sender`."""
        return self._memory[:size]

    def data(self, place: int, size: int) -> bytes:
        """The block."""
        return self._memory[:size].tobytes()

    def poll(self) -> None:
        """No effect: ZeroMQ has its own threads."""

    def close(self) -> None:
        """Nothing to release."""


class TcpReceiver:
    """The target's end."""

    def take(self, block: Block, place: int) -> Bytes:
        """See `transport.Receiver`."""
        if len(block.data) != block.size:
            raise TransportError(f"a block of {block.size} bytes came with {len(block.data)}")
        return np.frombuffer(block.data, np.uint8)

    def close(self) -> None:
        """Nothing to release."""
