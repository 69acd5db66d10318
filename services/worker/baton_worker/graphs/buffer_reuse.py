"""Buffer reuse between the kernel calls of a step: a buffer may be overwritten after its last
read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton_worker.kernels.cpu.call_recorder import Call

_LINE = 64
"""Bytes of a cache line."""


@dataclass(slots=True)
class _Piece:
    """A buffer passed to calls, and the range of calls that use it."""

    address: int
    size: int
    first: int = -1
    last: int = -1
    offset: int = 0


def shared(calls: Sequence[Call], tensors: Sequence[Tensor]) -> tuple[list[Call], Tensor]:
    """Move the private buffers `tensors` into one allocation. Returns the calls with new addresses,
    and the allocation, which is as large as what is in use at one time.
    """
    pieces = {t.data_ptr(): _Piece(t.data_ptr(), t.untyped_storage().nbytes()) for t in tensors}
    finder = _Finder([pieces[address] for address in sorted(pieces)])
    for number, call in enumerate(calls):
        for argument in call.arguments:
            if (piece := finder.find(argument)) is not None:
                piece.first = number if piece.first < 0 else piece.first
                piece.last = number
    memory = torch.empty(
        _place([p for p in finder.pieces if p.last >= 0]) + _LINE, dtype=torch.uint8
    )
    base = -(-memory.data_ptr() // _LINE) * _LINE
    moved = []
    for call in calls:
        located = [(x, finder.find(x)) for x in call.arguments]
        arguments = (x if p is None else base + p.offset + x - p.address for x, p in located)
        moved.append(replace(call, arguments=tuple(arguments)))
    return moved, memory


class _Finder:
    """Finds the piece that contains an address."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self.pieces = pieces
        self._starts = [piece.address for piece in pieces]

    def find(self, address: int) -> _Piece | None:
        """The piece that contains an address; None if there is none, as for arguments that are no
        addresses."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self.pieces[at].address + self.pieces[at].size:
            return None
        return self.pieces[at]


def _place(pieces: list[_Piece]) -> int:
    """Assign to each piece the lowest offset that is free during its use. Returns the total
    bytes."""
    placed: list[_Piece] = []
    for piece in sorted(pieces, key=lambda p: p.first):
        beside = sorted((p for p in placed if p.last >= piece.first), key=lambda p: p.offset)
        offset = 0
        for other in beside:
            if offset + piece.size <= other.offset:
                break
            offset = max(offset, -(-(other.offset + other.size) // _LINE) * _LINE)
        piece.offset = offset
        placed.append(piece)
    return max((p.offset + p.size for p in placed), default=0)
