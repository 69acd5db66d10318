"""Memory maps during loading: pages that were read are released to the system.

Resident pages of a map count as process memory until they are released or unmapped. A released page
is read from the file again on the next access.
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
"""Bytes that the system may map before and after the ones read."""
_MAPS = Path("/proc/self/maps")
_open = set[tuple[int, int]]()
"""Start and end address of every open map."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. While it is open, `release` works on its tensors."""
    with safe_open(path, framework="pt") as file:
        some = next((file.get_tensor(name) for name in file.keys()), None)  # noqa: SIM118
        place = None if some is None else _place(path, some.data_ptr())
        if place is not None:
            _open.add(place)
        try:
            yield file
        finally:
            # Before unmapping: the addresses may be reused.
            _open.discard(place or (0, 0))


def release(tensor: Tensor) -> None:
    """Release the resident pages of a tensor that lies in an open map."""
    extent = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = tensor.data_ptr()
    last = first + extent * tensor.itemsize
    for start, end in tuple(_open):
        if start <= first and last <= end:
            low, high = max(start, first - AROUND), min(end, last + AROUND)
            release_pages(low, high - low)


def _place(path: Path, address: int) -> tuple[int, int] | None:
    """The map of a file that contains an address; None if there is none or it is unknown."""
    lines = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    name = str(path.resolve())
    for line in lines:
        start, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
        if start <= address < end:
            return (start, end) if line.endswith(f" {name}") else None
    return None
