"""Requests of a worker to the keeper of its GPU, and the answers; msgpack over a Unix socket."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from baton.net.discovery import socket_path
from baton.net.topology import Link

LONGEST = 4096
"""Bytes of a message."""


class Lease(msgspec.Struct, tag=True):
    """Lease the memory of a name; it becomes zeros if the name has other memory."""

    name: str
    key: bytes
    """Digest of all that gives the bytes their meaning."""
    size: int
    num_pages: int = 0


class Find(msgspec.Struct, tag=True):
    """Tell what memory a name has."""

    name: str


class Seal(msgspec.Struct, tag=True):
    """The contents are complete, and do not change any more."""

    name: str
    checksum: int


class Drop(msgspec.Struct, tag=True):
    """Free the memory of a name once no process uses it."""

    name: str


class Leave(msgspec.Struct, tag=True):
    """The sender uses this memory no more."""

    generation: bytes


class Leased(msgspec.Struct, tag=True):
    """Memory that the sender leases now."""

    handle: bytes
    generation: bytes
    """Differs between any two allocations."""
    as_left: bool
    checksum: int | None
    """Of sealed memory."""


class Found(msgspec.Struct, tag=True):
    """The memory of a name; no generation if there is none."""

    generation: bytes = b""
    size: int = 0
    num_pages: int = 0
    sealed: bool = False


class Done(msgspec.Struct, tag=True):
    """The request was executed, or there was nothing to do."""


class Refused(msgspec.Struct, tag=True):
    """The request cannot be executed, in one sentence."""

    reason: str


Request: TypeAlias = Lease | Find | Seal | Drop | Leave
Answer: TypeAlias = Leased | Found | Done | Refused


def address(run_dir: Path, gpu: int) -> str:
    """Path of the socket of a GPU's keeper. Raises `SettingsError` if it is too long."""
    link = Link(f"gpu-{gpu}-memory", "supervisor", "worker", (), ())
    return socket_path(run_dir, link).removeprefix("ipc://")
