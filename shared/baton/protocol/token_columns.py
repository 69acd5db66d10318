"""Packed columns of the wire, block hashes of tokens, and seeds."""

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
    """Unpack a column, the inverse of `pack`.

    Raises `ValueError` if the length is not a multiple of the item size.
    """
    column: array[int] = array(kind)
    column.frombytes(data)
    if not _LITTLE:
        column.byteswap()
    return column


def unpack_floats(data: bytes) -> array[float]:
    """Unpack a float32 column, the inverse of `pack(..., "f")`."""
    column: array[float] = array("f")
    column.frombytes(data)
    if not _LITTLE:
        column.byteswap()
    return column


def block_hash(previous: bytes, block: bytes) -> bytes:
    """Hash of a block of packed tokens, chained to the previous block's hash; 16 bytes.

    The root of a chain is `block_hash(b"", salt)`.
    """
    return blake2b(previous + block, digest_size=16).digest()


def block_hashes(tokens: Sequence[int], size: int, salt: bytes = b"") -> list[bytes]:
    """Hashes of the full blocks of `size` tokens, 16 bytes each; each covers all tokens before it.

    The salt (tenant, adapter, media) enters at the root, so chains of different salts share no
    hash.
    """
    chain = block_hash(b"", salt)
    hashes = []
    for end in range(size, len(tokens) + 1, size):
        chain = block_hash(chain, pack(tokens[end - size : end]))
        hashes.append(chain)
    return hashes


def derive_seed(seed: int, choice: int) -> int:
    """Seed of one choice of a request: 64 bits, equal on every machine.

    Choice 0 keeps the request's seed, so `n=1` and the first choice of `n=4` agree.
    """
    if choice == 0:
        return seed & _SEED_MASK
    text = f"{seed & _SEED_MASK}:{choice}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
