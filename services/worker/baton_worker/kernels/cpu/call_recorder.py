"""Kernel calls that can be recorded, and replayed without Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from baton_worker.kernels.cpu import library

Argument: TypeAlias = Tensor | int | None
"""An argument of a kernel: memory, or its address, or a number; None is a null pointer."""
_MOST = 12
"""Arguments of a kernel; mirrored in tape.cpp."""
_HEAD = 5
"""Numbers of a call before its arguments."""


class Extent(NamedTuple):
    """Size of a step: tokens of each row."""

    tokens: int
    rows: int

    @classmethod
    def decode(cls, rows: int) -> Extent:
        """One token per row."""
        return cls(rows, rows)


class _Listener(threading.local):
    """The recorder of this thread's calls, if any."""

    take: Callable[[Call], None] | None = None


_listener = _Listener()
_made = ctypes.c_int64()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel."""

    address: int
    at: int
    """Index of the argument that is the number of tokens, or a multiple of it."""
    rows: bool
    """That argument is the number of rows instead."""
    arguments: tuple[int, ...]


class Kernel:
    """A C function of pointers and 64-bit integers.

    Args:
        function: function of a `library`.
        count: number of its arguments.
        tokens: index of the argument that is the number of tokens; addresses do not depend on it.
        rows: the same for a kernel that takes the number of rows and finds their tokens itself.
    """

    def __init__(
        self,
        function: ctypes._NamedFuncPointer,
        count: int,
        *,
        tokens: int | None = None,
        rows: int | None = None,
    ) -> None:
        at = rows if tokens is None else tokens
        assert at is not None and 0 <= at < count <= _MOST and None in (tokens, rows)
        # Integers are passed like pointers.
        function.argtypes, function.restype = (ctypes.c_void_p,) * count, None
        self._run, self._at, self._rows = function, at, tokens is None
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0

    def __call__(self, *arguments: Argument) -> None:
        """Run it, or pass it to the active listener; the memory that it points to must stay
        alive."""
        numbers = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        if _listener.take is None:
            self._run(*numbers)
        else:
            values = tuple(number or 0 for number in numbers)
            _listener.take(Call(self.address, self._at, self._rows, values))


def structure(kind: type[ctypes.Structure], *fields: float | None) -> int:
    """Address of a structure with these fields, an argument of a kernel. It is never freed, since
    recorded calls keep its address."""
    return ctypes.addressof(_structure(kind, fields))


@cache
def _structure(kind: type[ctypes.Structure], fields: tuple[float | None, ...]) -> ctypes.Structure:
    return kind(*fields)


@contextmanager
def listening(take: Callable[[Call], None]) -> Iterator[None]:
    """Within this block, pass every call of this thread to `take` instead of making it."""
    assert _listener.take is None, "two listen at a time"
    _listener.take = take
    try:
        yield
    finally:
        _listener.take = None


class CallRecording:
    """Recorded calls in their order.

    Args:
        calls: recorded for the tokens and rows of `extent`.

    Raises:
        ValueError: a call was recorded for another extent.
    """

    def __init__(self, calls: Sequence[Call], extent: Extent) -> None:
        kernels = library("tape")
        assert kernels is not None, "refuses() was not asked"
        self._calls = np.zeros((len(calls), _HEAD + _MOST), np.int64)
        for line, call in zip(self._calls, calls, strict=True):
            each, rest = divmod(
                call.arguments[call.at], extent.rows if call.rows else extent.tokens
            )
            if rest or not each:
                raise ValueError("a kernel runs for something else than the tokens of the step")
            line[:_HEAD] = call.address, len(call.arguments), call.at, call.rows, each
            line[_HEAD : _HEAD + len(call.arguments)] = call.arguments
        self._run = kernels.baton_replay
        self._run.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 3, ctypes.c_void_p)
        self._run.restype = None

    @staticmethod
    def made() -> int:
        """Number of calls replayed in this process. Any thread may ask, also during a replay."""
        return _made.value

    @classmethod
    def refuses(cls) -> str | None:
        """Why nothing can be replayed here, as half a sentence; None if it can."""
        return "the CPU kernels could not be built" if library("tape") is None else None

    def replay(self, extent: Extent) -> None:
        """Make the calls again, for the first tokens and rows."""
        self._run(self._calls.ctypes.data, len(self._calls), *extent, ctypes.addressof(_made))
