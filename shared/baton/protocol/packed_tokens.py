"""Token ids in packed form, unpacked on first use."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

from baton.protocol.token_columns import pack, unpack

_ITEM_BYTES = 4


def num_tokens(column: bytes) -> int:
    """Number of ids in an int32 column. Raises `ValueError` if the column is cut off."""
    number, rest = divmod(len(column), _ITEM_BYTES)
    if rest:
        raise ValueError("the length of a token column is not a multiple of 4")
    return number


class PackedTokens(Sequence[int]):
    """An int32 column that is forwarded unchanged, and unpacked when an id is read."""

    __slots__ = ("_ids", "_length", "column")

    def __init__(self, column: bytes) -> None:
        """Raises `ValueError` if the column is cut off."""
        self.column = column
        self._length = num_tokens(column)
        self._ids: array[int] | None = None

    @classmethod
    def of(cls, ids: Iterable[int]) -> PackedTokens:
        """Pack ids."""
        return cls(pack(ids))

    @property
    def ids(self) -> array[int]:
        """All ids, int32."""
        if self._ids is None:
            self._ids = unpack(self.column)
        return self._ids

    def tail(self, count: int) -> bytes:
        """Column of the last `count` ids, or of all if there are fewer."""
        return self.column[-_ITEM_BYTES * count :] if count else b""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> array[int]: ...
    def __getitem__(self, index: int | slice) -> int | array[int]:
        return self.ids[index]
