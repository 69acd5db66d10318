"""A way for deltas past the tasks that would carry them: waking one costs more than the writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from baton_gateway.burst import Burst

if TYPE_CHECKING:
    from baton_gateway.generation import Delta


class Outlet:
    """Shared by whoever runs a request and whoever answers it. It is used only while the reader of
    the deltas waits, so that nothing overtakes anything."""

    __slots__ = ("burst", "write")

    def __init__(self) -> None:
        self.write: Callable[[Delta], bool] = _closed
        """Writes a delta at once, or returns False and has done nothing."""
        self.burst = Burst()
        """With which others its chunks leave; that of whoever runs many requests."""

    def close(self) -> None:
        """From now on, deltas go to their reader."""
        self.write = _closed


def _closed(delta: Delta) -> bool:
    return False
