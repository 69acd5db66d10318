"""Decodes media in child processes that may be killed at any time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec

from baton.logs import logger
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout
from baton_mm_preprocess.sandbox.fair_turns import FairTurns
from baton_mm_preprocess.sandbox.process import Outcome, Problem, Setup, Source

_MODULE = "baton_mm_preprocess.sandbox.process"
_TRIES = 2
"""Attempts per file, since a child may have exited for another reason."""

FIRST_SECONDS = 2.0
"""Time of a first try. A slower file is restarted behind the others, with the full time limit."""

log = logger(__name__)
T = TypeVar("T")
Item = TypeVar("Item")
_outcome: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)


class DecodePool:
    """Decodes in at most `processes` children. Life cycle: `start`, then `submit` and `prepare`,
    `close`."""

    def __init__(
        self, setup: Setup, processes: int, seconds: float, max_requests: int = 256
    ) -> None:
        """`max_requests`: requests that are submitted concurrently; others wait."""
        self._seconds = seconds
        self._turns = FairTurns(processes)
        self._threads = ThreadPoolExecutor(max_requests, thread_name_prefix="media")
        self._helpers = ThreadPoolExecutor(processes, thread_name_prefix="media-ahead")
        data = msgspec.msgpack.encode(setup)
        self._children = ChildPool(_MODULE, data, processes, "Media preprocessing")

    def start(self) -> None:
        """Start the processes in the background, so that the first image does not wait for one."""
        self._children.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread that may call `prepare`."""
        return self._threads.submit(work)

    def map(self, work: Callable[[Item], T], items: Sequence[Item]) -> Generator[T, None, None]:
        """The results of work that may call `prepare`, in the order of the items. Items behind the
        one that is waited for run meanwhile, if helpers are free. Closing it drops those that have
        not begun."""
        ahead = [self._helpers.submit(work, item) for item in items[1:]]
        try:
            yield work(items[0])
            for item, future in zip(items[1:], ahead, strict=True):
                yield work(item) if future.cancel() else future.result()
        finally:
            for future in ahead:
                future.cancel()

    def prepare(
        self,
        url: str,
        tenant: str = "",
        until: float = math.inf,
        modality: str = "image",
        images: int = 1,
        first_chunk: int = -1,
        *,
        sound: bool = False,
    ) -> Outcome:
        """The tensor of a file, or the problem with it. Call it only from submitted work.

        Args:
            tenant: its order is determined by the time that its files have used.
            until: deadline by `time.monotonic`.
            images: number of images of its request.
            first_chunk, sound: see `Source`.

        Raises:
            Unavailable: no child process can be started, or none was free until then.
        """
        request = msgspec.msgpack.encode(Source(url, modality, images, first_chunk, sound))
        deaths, slow = 0, False
        while deaths < _TRIES:
            seconds = self._seconds if slow else min(FIRST_SECONDS, self._seconds)
            with self._turns.turn(tenant, len(url), until, slow=slow):
                try:
                    return _outcome.decode(self._children.exchange(request, seconds, wall=True))
                except ChildTimeout:
                    if seconds == self._seconds:
                        return self._slow(modality)
                    slow = True
                except ChildDied:
                    deaths += 1
                    log.warning("a process that decodes media has ended")
        return Problem(
            f"{modality}_parse_error",
            f"The {modality} cannot be read: the process that tries to does not survive it.",
        )

    def _slow(self, modality: str) -> Problem:
        return Problem(
            f"{modality}_too_large",
            f"The {modality} takes more than the {self._seconds:g} s that this server gives it. "
            "Send a smaller one.",
        )

    def close(self) -> None:
        """Kill the children; pending work is dropped."""
        self._turns.close()
        self._children.close()
        self._threads.shutdown(cancel_futures=True)
        self._helpers.shutdown(cancel_futures=True)
