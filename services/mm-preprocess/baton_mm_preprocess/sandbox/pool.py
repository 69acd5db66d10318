"""Decodes media in child processes that may be killed at any time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from baton.logs import logger
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout
from baton_mm_preprocess.sandbox.process import Outcome, Problem, Setup

_MODULE = "baton_mm_preprocess.sandbox.process"
_TRIES = 2
"""Attempts per file, since a child may have died for another reason."""

log = logger(__name__)
T = TypeVar("T")
_outcome: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)


class DecodePool:
    """Decodes in at most `processes` children. Life cycle: `start`, then `submit` and `prepare`,
    `close`."""

    def __init__(self, setup: Setup, processes: int, seconds: float) -> None:
        self._seconds = seconds
        data = msgspec.msgpack.encode(setup)
        self._children = ChildPool(_MODULE, data, processes, "Media preprocessing")

    def start(self) -> None:
        """Begin to start the processes, so that the first image does not wait for one."""
        self._children.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread that may call `prepare`."""
        return self._children.submit(work)

    def prepare(self, url: str) -> Outcome:
        """The tensor of an image, or the problem with it. Call it only from submitted work.

        Raises:
            Unavailable: no child process can be started.
        """
        request = msgspec.msgpack.encode(url)
        for _ in range(_TRIES):
            try:
                return _outcome.decode(self._children.exchange(request, self._seconds))
            except ChildTimeout:
                return self._slow()
            except ChildDied:
                log.warning("a process that decodes media has ended")
        return Problem(
            "image_parse_error",
            "The image cannot be read: the process that tries to does not survive it.",
        )

    def _slow(self) -> Problem:
        return Problem(
            "image_too_large",
            f"The image takes more than the {self._seconds:g} s that this server gives it. Send a "
            "smaller one.",
        )

    def close(self) -> None:
        """Kill the children; pending work is dropped."""
        self._children.close()
