"""The transport contract: how a block moves from one worker's memory to another's.

A transfer buffer connects two workers: `places` slots of `place_bytes` each. The source's end
(`Sender`) writes blocks into it, the target's end (`Receiver`) reads them. Control messages, such
as which block is ready and in which slot, always use ZeroMQ. A target reads the transfer buffer
only, never pages, so grants are enforced for every transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from baton.errors import BatonError
from baton.protocol import Block, Offer

if TYPE_CHECKING:
    from torch import Tensor

Bytes = NDArray[np.uint8]
BlockBuffer: TypeAlias = "Bytes | Tensor"
"""Bytes on the host, or a tensor uint8 on the device of the pages."""


class TransferError(Exception):
    """The pull has failed, with a reason. The sequence is recomputed: output stays correct."""


class TransportError(TransferError):
    """The pull has failed in the transport: another transport may succeed."""


class UnusableError(BatonError):
    """This worker cannot use a transport, with a reason."""


class Size(NamedTuple):
    """Size of a transfer buffer."""

    places: int
    place_bytes: int

    @property
    def total(self) -> int:
        """Bytes of all slots."""
        return self.places * self.place_bytes


class Sender(Protocol):
    """The source's end of a connection. Life cycle: `view` and `data` per block, `poll` often,
    `close`."""

    terms: bytes
    """Opaque bytes that the target's end needs."""

    def view(self, place: int, size: int) -> BlockBuffer:
        """The first `size` bytes of a slot, to be written."""

    def data(self, place: int, size: int) -> bytes:
        """The part of the block that the message must carry: all of it, or nothing."""

    def poll(self) -> None:
        """Drive libraries that have no progress thread."""

    def close(self) -> None:
        """Release the memory."""


class Receiver(Protocol):
    """The target's end of a connection."""

    def take(self, block: Block, place: int) -> BlockBuffer:
        """The bytes of a received block, valid until its slot is requested again. Raises
        `TransportError`."""

    def close(self) -> None:
        """Release the memory."""


class Transport(Protocol):
    """One per worker, constructed at startup from its `Config`; raises `UnusableError` with the
    reason and a remedy. Its ends are used in the exporter and importer threads."""

    reach: Literal["host", "network"]
    on_device: bool
    """Whether slots are memory of a device: for content that is on one."""

    def send(self, size: Size) -> Sender:
        """Transfer buffer of a new connection."""

    def receive(self, terms: bytes, size: Size) -> Receiver:
        """The target's end of a connection. Raises `TransportError`."""

    def close(self) -> None:
        """Release what all connections share."""


def choose(mine: dict[str, Offer], theirs: tuple[Offer, ...], *, near: bool) -> str:
    """The first of `theirs`, in order of preference, that both can use; empty if there is none.

    Args:
        near: whether both are on one host and share a run directory.
    """
    for offer in theirs:
        transport = mine.get(offer.name)
        if transport is not None and (near or transport.reach == offer.reach == "network"):
            return offer.name
    return ""


def offers(transports: dict[str, Transport]) -> dict[str, Offer]:
    """A worker's transports, as announced to a peer."""
    return {name: Offer(name, transport.reach) for name, transport in transports.items()}
