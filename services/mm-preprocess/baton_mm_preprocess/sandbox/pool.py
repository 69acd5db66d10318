"""Pool of sandboxed child processes that decode media, reused while they answer, killed on timeout.

Each child has its own waiting thread, so a large image delays only the items queued behind it.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec

from baton.errors import Unavailable
from baton.logs import logger
from baton.net import frames
from baton_mm_preprocess.sandbox.process import (
    Outcome,
    Problem,
    Setup,
)

_STARTUP_SECONDS = 40.0
"""Timeout of the first answer, which includes the child's imports."""
_TRIES = 2
"""Attempts per file, since a child may have died for another reason."""

log = logger(__name__)
T = TypeVar("T")
_outcome: msgspec.msgpack.Decoder[Outcome] = msgspec.msgpack.Decoder(Outcome)


class ChildDied(Exception):
    """The child ended while processing a message."""


class ChildTimeout(ChildDied):
    """The child was killed after a timeout."""


class Child:
    """One child process, used by one caller at a time."""

    def __init__(self, setup: Setup) -> None:
        """Raises `Unavailable` when no process can be had."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "baton_mm_preprocess.sandbox.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.exchange(setup, _STARTUP_SECONDS)
        except ChildDied as error:
            self.close()
            log.error("the process that decodes media does not start: %r", error)
            raise Unavailable("Media cannot be read at the moment. Try again later.") from error

    def exchange(self, message: object, seconds: float) -> bytes:
        """Send a message and return the answer. Raises `ChildDied`, or `ChildTimeout` after
        `seconds`."""
        source, target = self._process.stdout, self._process.stdin
        assert source is not None and target is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            frames.send(target, msgspec.msgpack.encode(message))
            answer = frames.receive(source)
        except BrokenPipeError:
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            raise ChildTimeout if late.is_set() else ChildDied
        return answer

    def close(self) -> None:
        """Kill the child."""
        self._process.kill()
        self._process.communicate()


class ChildPool:
    """At most `processes` of them. Life cycle: `start`, then `submit` and `prepare`, `close`."""

    def __init__(self, setup: Setup, processes: int, seconds: float) -> None:
        self._setup, self._seconds = setup, seconds
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="media")
        self._processes = processes
        self._free = queue.SimpleQueue[Child]()

    def start(self) -> None:
        """Begin to start the processes, so that the first image does not wait for one."""
        for _ in range(self._processes):
            self._threads.submit(lambda: self._free.put(Child(self._setup)))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread that may call `prepare`."""
        return self._threads.submit(work)

    def prepare(self, url: str) -> Outcome:
        """The tensor of an image, or the problem with it. Call it only from submitted work.

        Raises:
            Unavailable: no child process can be started.
        """
        for _ in range(_TRIES):
            try:
                return self._ask(url)
            except ChildTimeout:
                return self._slow()
            except ChildDied:
                log.warning("a process that decodes media has ended")
        return Problem(
            "image_parse_error",
            "The image cannot be read: the process that tries to does not survive it.",
        )

    def _ask(self, url: str) -> Outcome:
        child, whole = self._take(), False
        try:
            outcome = _outcome.decode(child.exchange(url, self._seconds))
            whole = True
            return outcome
        finally:
            if whole:
                self._free.put(child)
            else:
                child.close()

    def _take(self) -> Child:
        """A free child, else a new one."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return Child(self._setup)

    def _slow(self) -> Problem:
        return Problem(
            "image_too_large",
            f"The image takes more than the {self._seconds:g} s that this server gives it. Send a "
            "smaller one.",
        )

    def close(self) -> None:
        """Kill the children; pending work is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._free.empty():
            self._free.get_nowait().close()
