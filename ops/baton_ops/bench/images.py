"""Images for benchmarks: JPEG files of random colours, as data URLs."""

from __future__ import annotations

import base64
import io
import random
from functools import lru_cache

_CELL = 32
"""Pixels between two random colours; what lies between is interpolated, as in a photograph."""


class Images:
    """Supplies the images of requests.

    `variety` is the number of different images; 0 means that every one is new, so that no cache
    contains it.
    """

    def __init__(self, count: int, size: tuple[int, int], variety: int, seed: int) -> None:
        """
        Args:
            count: images of a request.
            size: width and height in pixels.
        """
        self._count, self._size, self._variety = count, size, variety
        self._seed, self._num_made = seed, 0

    def next(self) -> tuple[str, ...]:
        """Return the data URLs of the next request."""
        return tuple(self._next() for _ in range(self._count))

    def _next(self) -> str:
        number = self._num_made % self._variety if self._variety else self._num_made
        self._num_made += 1
        return image(*self._size, self._seed * 100_000 + number)


NO_IMAGES = Images(0, (1, 1), 1, 0)


@lru_cache(maxsize=256)
def image(width: int, height: int, seed: int) -> str:
    """Return a JPEG of this size as a data URL; a function of the seed."""
    from PIL import Image  # Deferred: only benchmarks with images need it.

    cells = (width // _CELL + 2, height // _CELL + 2)
    colours = random.Random(seed).randbytes(3 * cells[0] * cells[1])
    small = Image.frombytes("RGB", cells, colours)
    file = io.BytesIO()
    small.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
