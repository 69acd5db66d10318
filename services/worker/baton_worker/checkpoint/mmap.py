"""Files that are mapped while a model is loaded: what has been read of one goes back to the system.

Pages of a map that were read count as memory of the process until the map is gone or they are let
go. Letting go loses nothing: who reads them again gets them from the file again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from baton_worker.platform.malloc import release_pages

AROUND = 64 << 10
"""Bytes that the system may map before and behind those that are read."""
_MAPS = Path("/proc/self/maps")
_open = set[tuple[int, int]]()
"""Address of the first byte of every map, and of the one behind its last."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The handle of a safetensors file. While it is open, `release` knows its tensors."""
    with safe_open(path, framework="pt") as file:
        some = next((file.get_tensor(name) for name in file.keys()), None)  # noqa: SIM118
        place = None if some is None else _place(path, some.data_ptr())
        if place is not None:
            _open.add(place)
        try:
            yield file
        finally:
            # Before the map is gone: others may be given its addresses.
            _open.discard(place or (0, 0))


def release(tensor: Tensor) -> None:
    """Let go of what has been read of a tensor, if it lies in an open map."""
    extent = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = tensor.data_ptr()
    last = first + extent * tensor.itemsize
    for start, end in tuple(_open):
        if start <= first and last <= end:
            low, high = max(start, first - AROUND), min(end, last + AROUND)
            release_pages(low, high - low)


def _place(path: Path, address: int) -> tuple[int, int] | None:
    """The map of a file that an address lies in. None where it lies in none, or nobody can say."""
    lines = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    name = str(path.resolve())
    for line in lines:
        start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return (start, end) if line.endswith(f" {name}") else None
    return None
