"""A service that notes where its main thread spends processor time: what `path --profile` starts.

A function counts for a sample when it is anywhere on the stack, so the shares of callers contain
those of what they call. Time inside of C, as that of a system call, is its caller's. What is spent
on imports does not count.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

from baton_ops.supervisor.child_main import main

_SECONDS = 0.001
"""Of processor time, between two samples."""
_OFTEN = 200
"""Samples between two times that they are written down."""


class Sampler:
    """Counts functions by name. Life cycle: `start` once, in the main thread."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / f"samples-{os.getpid()}"
        self._counts: Counter[str] = Counter()
        self._samples = 0

    def start(self) -> None:
        """Begin to count."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        names = set()
        while frame is not None:
            file = os.path.basename(frame.f_code.co_filename)
            if file.startswith("<frozen importlib"):
                return
            names.add(f"{file} {frame.f_code.co_qualname}")
            frame = frame.f_back
        self._samples += 1
        self._counts.update(names)
        if self._samples % _OFTEN == 0:
            self._write()

    def _write(self) -> None:
        part = self._file.with_name(f"part-{self._file.name}")
        part.write_bytes(msgspec.json.encode((self._samples, self._counts)))
        part.replace(self._file)


def shares(folder: Path, most: int) -> list[tuple[str, float]]:
    """The functions that most samples were in, with their shares; of whoever ran longest."""
    found = [msgspec.json.decode(file.read_bytes()) for file in folder.glob("samples-*")]
    samples, counts = max(found, key=lambda one: one[0])
    return [(name, count / samples) for name, count in Counter(counts).most_common(most)]


if __name__ == "__main__":
    Sampler(Path(sys.argv.pop(1))).start()
    main()
