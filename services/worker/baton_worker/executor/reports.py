"""Reports from a follower to its leader: MessagePack frames on a pipe, like commands."""

from __future__ import annotations

from typing import BinaryIO, TypeAlias

import msgspec

from baton.net import frames
from baton.protocol import Pulled


class Serving(msgspec.Struct, tag="serving", array_like=True, frozen=True):
    """First report: the address at which this rank serves its pages."""

    address: str


class Ended(msgspec.Struct, tag="ended", array_like=True, frozen=True):
    """This rank's share of a pull has ended."""

    pulled: Pulled


class Progressed(msgspec.Struct, tag="progressed", array_like=True, frozen=True):
    """This rank has run layers since its last report of this kind."""

    count: int
    """Number of these reports so far."""


Report: TypeAlias = Serving | Ended | Progressed


def send(file: BinaryIO, report: Report) -> None:
    """Write one report.

    Raises:
        OSError: the leader has exited.
    """
    frames.send(file, msgspec.msgpack.encode(report))


class Reports:
    """Reports of one follower."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = msgspec.msgpack.Decoder(Report)

    def next(self) -> Report | None:
        """Wait for the next report; None if the follower has exited."""
        data = frames.receive(self._file)
        return None if data is None else self._decoder.decode(data)
