"""Token ids on the wire: packed columns, and the hash chain over blocks of them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

_LITTLE = sys.byteorder == "little"
_SEED_MASK = (1 << 64) - 1


def pack(values: Iterable[int], kind: str = "i") -> bytes:
    """Pack integers as a little-endian column; `kind` is an `array` type code.

    "i" is int32 (token ids), "I" uint32 (slots, indices), "B" uint8, "f" float32, "Q" uint64.
    """
    column = array(kind, values)
    if not _LITTLE:
        column.byteswap()
    return column.tobytes()


def unpack(data: bytes, kind: str = "i") -> array[int]:
    """Undo `pack`. Raises `ValueError` when the length is not a multiple of the item size."""
    column: array[int] = array(kind)
    column.frombytes(data)
    if not _LITTLE:
        column.byteswap()
    return column


def unpack_floats(data: bytes) -> array[float]:
    """Undo `pack(..., "f")`."""
    column: array[float] = array("f")
    column.frombytes(data)
    if not _LITTLE:
        column.byteswap()
    return column


def block_hash(previous: bytes, block: bytes) -> bytes:
    """Next link of a hash chain, 16 bytes: from the link before and a block of packed tokens.

    The root of a chain is `block_hash(b"", salt)`.
    """
    return blake2b(previous + block, digest_size=16).digest()


def block_hashes(tokens: Sequence[int], size: int, salt: bytes = b"") -> list[bytes]:
    """Hash chain over full blocks of `size` tokens: a block's hash covers all before it.

    The salt (tenant, adapter, media) enters at the root, so chains of different salts share
    no hash. 16 bytes each.
    """
    chain = block_hash(b"", salt)
    hashes = []
    for end in range(size, len(tokens) + 1, size):
        chain = block_hash(chain, pack(tokens[end - size : end]))
        hashes.append(chain)
    return hashes


def derive_seed(seed: int, choice: int) -> int:
    """Seed of choice number `choice` of a request: 64 bits, equal on every machine.

    Choice 0 keeps the request's own seed, so `n=1` and the first of `n=4` agree.
    """
    if choice == 0:
        return seed & _SEED_MASK
    text = f"{seed & _SEED_MASK}:{choice}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
