"""Kernels whose calls can be taken down, and made again without Python in between."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from torch import Tensor

from baton_worker.kernels.cpu import library

Argument: TypeAlias = Tensor | int | None
"""What a kernel is given: memory, or its address, or a number; None is a null pointer."""
_MOST = 12
"""Arguments of a kernel; mirrored in tape.cpp."""


class _Listener(threading.local):
    """Whoever takes down the calls of this thread."""

    take: Callable[[Call], None] | None = None


_listener = _Listener()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel for `rows` rows; argument `rows_at` says how many, or a multiple."""

    address: int
    rows_at: int
    arguments: tuple[int, ...]


class Kernel:
    """A C function of pointers and 64-bit integers.

    Args:
        function: of a `library`.
        count: of its arguments.
        rows: which of them says how many rows there are; addresses do not depend on it.
    """

    def __init__(self, function: ctypes._NamedFuncPointer, count: int, rows: int) -> None:
        assert 0 <= rows < count <= _MOST
        # An integer is passed as a pointer is.
        function.argtypes, function.restype = (ctypes.c_void_p,) * count, None
        self._run, self._rows = function, rows
        self._address = ctypes.cast(function, ctypes.c_void_p).value or 0

    def __call__(self, *arguments: Argument) -> None:
        """Run it; memory that an address points to must live as long as whoever listens."""
        numbers = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        if _listener.take is not None:
            given = tuple(number or 0 for number in numbers)
            _listener.take(Call(self._address, self._rows, given))
        self._run(*numbers)


@contextmanager
def listening(take: Callable[[Call], None]) -> Iterator[None]:
    """Hand every call that this thread makes meanwhile to `take`, before it is made."""
    assert _listener.take is None, "two listen at a time"
    _listener.take = take
    try:
        yield
    finally:
        _listener.take = None


class Tape:
    """Calls in the order in which they were made.

    Args:
        calls: made for `rows` rows.

    Raises:
        ValueError: a call was made for something else than rows.
    """

    def __init__(self, calls: Sequence[Call], rows: int) -> None:
        kernels = library("tape")
        assert kernels is not None, "refuses() was not asked"
        self._calls = np.zeros((len(calls), 4 + _MOST), np.int64)
        for line, call in zip(self._calls, calls, strict=True):
            per_row, rest = divmod(call.arguments[call.rows_at], rows)
            if rest or not per_row:
                raise ValueError("a kernel runs for something else than the rows of the step")
            line[:4] = call.address, len(call.arguments), call.rows_at, per_row
            line[4 : 4 + len(call.arguments)] = call.arguments
        self._run = kernels.baton_replay
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._run.restype = None

    @classmethod
    def refuses(cls) -> str | None:
        """Why nothing can be replayed here, as half a sentence; None if it can."""
        return "the CPU kernels could not be built" if library("tape") is None else None

    def replay(self, rows: int) -> None:
        """Make them again, for the first `rows` rows."""
        self._run(self._calls.ctypes.data, len(self._calls), rows)
