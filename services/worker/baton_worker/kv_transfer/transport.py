"""What a transport is: one way for a block to get from one worker's memory into another's.

A lane is the memory between two workers: `places` of `place_bytes` each. The source's half of a
transport has it (`Sender`) and writes blocks there; the target's half (`Receiver`) reads them.
What is said about blocks, which one comes next and where it lies, goes over ZeroMQ whatever the
transport. A target reads only the lane and never pages, so a grant holds for every transport.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from baton.errors import BatonError
from baton.protocol import Block, Offer

Bytes = NDArray[np.uint8]


class TransferError(Exception):
    """This pull has failed, and says why. The sequence is recomputed: never a wrong token."""


class CarriageError(TransferError):
    """It failed because of the transport: another one may do better."""


class UnusableError(BatonError):
    """This worker cannot use a transport, and says why."""


class Size(NamedTuple):
    """Of a lane."""

    places: int
    place_bytes: int

    @property
    def total(self) -> int:
        """Bytes of all places."""
        return self.places * self.place_bytes


class Sender(Protocol):
    """The source's half of one lane. Life cycle: room and data per block, `tend` often, `close`."""

    terms: bytes
    """What the target's half needs to know."""

    def room(self, place: int, size: int) -> Bytes:
        """The first `size` bytes of a place, to be written."""

    def data(self, place: int, size: int) -> bytes:
        """What of the block has to travel in the message: all of it, or nothing."""

    def tend(self) -> None:
        """Let a library make progress that has no thread of its own."""

    def close(self) -> None:
        """Give the memory back."""


class Receiver(Protocol):
    """The target's half of one lane."""

    def take(self, block: Block, place: int) -> Bytes:
        """The bytes of a block that is in its place. They are there until the place is asked for
        again. Raises `CarriageError`."""

    def close(self) -> None:
        """Give the memory back."""


class Transport(Protocol):
    """One per worker, made at its start with its `Config`; raises `UnusableError` with the reason
    and what to do about it. Its halves are used in the threads of exporter and importer."""

    reach: Literal["host", "network"]

    def send(self, size: Size) -> Sender:
        """Memory for a new lane."""

    def receive(self, terms: bytes, size: Size) -> Receiver:
        """The other end of a lane. Raises `CarriageError`."""

    def close(self) -> None:
        """Give back what all lanes share."""


def choose(mine: dict[str, Offer], theirs: tuple[Offer, ...], *, near: bool) -> str:
    """The first of their transports, best first, that both can use; empty when there is none.

    Args:
        near: both are on one host and see one run directory.
    """
    for offer in theirs:
        own = mine.get(offer.name)
        if own is not None and (near or own.reach == offer.reach == "network"):
            return offer.name
    return ""


def offers(transports: dict[str, Transport]) -> dict[str, Offer]:
    """What a worker says about its transports."""
    return {name: Offer(name, made.reach) for name, made in transports.items()}
