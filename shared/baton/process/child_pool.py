"""Pool of child processes that handle untrusted input: reused after an answer, killed otherwise.

    caller --> a thread of the pool --> its child (`baton.process.sandbox`)
               waits, limits its time     limits its memory

One thread waits for each child, so a slow request delays only the requests queued behind it.
"""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, TypeVar

from baton.errors import Unavailable
from baton.logs import logger
from baton.net import frames
from baton.process.time_limit import TimeLimit

_STARTUP_SECONDS = 40.0
"""Wall time limit of the first answer, which includes the child's imports."""

log = logger(__name__)
T = TypeVar("T")


class ChildDied(Exception):
    """The child exited before it answered."""


class ChildTimeout(ChildDied):
    """The child was killed because it took too long."""


class Child:
    """One child process, used by one thread at a time."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def exchange(self, request: bytes, seconds: float, *, wall: bool = False) -> bytes:
        """Send a request and return its answer.

        Args:
            seconds: limit of the child's processor time, or of `wall` time; see `TimeLimit`.

        Raises:
            ChildTimeout: no answer within the limit; the child was killed.
            ChildDied: it exited, or another thread killed it.
        """
        with TimeLimit(self._process.pid, seconds, self.kill, wall=wall) as limit:
            answer = self._exchange(request)
        if answer is None:
            raise ChildTimeout if limit.exceeded else ChildDied
        return answer

    def _exchange(self, request: bytes) -> bytes | None:
        source, target = self._pipes()
        try:
            frames.send(target, request)
        except BrokenPipeError:
            return None
        return frames.receive(source)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        source, target = self._process.stdout, self._process.stdin
        assert source is not None and target is not None
        return source, target

    def kill(self) -> None:
        """Kill the process; any thread may call it."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._process.communicate()


class Cancellation:
    """Kills the child of one request, now or as soon as it exists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Kill the child."""
        with self._lock:
            self._cancelled = True
            if self._child is not None:
                self._child.kill()

    @contextmanager
    def covers(self, child: Child) -> Iterator[None]:
        """Context in which the child works on the request."""
        with self._lock:
            self._child = child
            if self._cancelled:
                child.kill()
        try:
            yield
        finally:
            with self._lock:
                self._child = None


class ChildPool:
    """At most `size` children, each started when there is work and no idle one.

    Life cycle: `start` (optional), then any number of `submit` and `call`, then `close`.
    """

    def __init__(self, module: str, setup: bytes, size: int, purpose: str) -> None:
        """Args:
        module: run as `python -m`; it calls `sandbox.main`.
        setup: first frame to each child.
            purpose: the unavailable feature, for the error message if no child can be started.
        """
        self._module, self._setup, self._purpose = module, setup, purpose
        self._size = size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="child")
        self._idle = queue.SimpleQueue[Child]()
        self._lock = threading.Lock()
        self._children = set[Child]()
        self._closed = False

    def start(self) -> None:
        """Start all children in the background, so that the first request does not wait for one."""
        for _ in range(self._size):
            self._threads.submit(lambda: self._idle.put(self._new()))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in a thread that may call `exchange`."""
        return self._threads.submit(work)

    async def call(self, request: bytes, seconds: float) -> bytes:
        """`exchange` for asyncio; a cancellation kills the child. Same errors."""
        cancellation = Cancellation()
        work = self.submit(lambda: self.exchange(request, seconds, cancellation))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise

    def exchange(
        self,
        request: bytes,
        seconds: float,
        cancellation: Cancellation | None = None,
        *,
        wall: bool = False,
    ) -> bytes:
        """Send a request to a child and return its answer. Call it in submitted work.

        Args:
            seconds: limit of the child's processor time, or of `wall` time; see `TimeLimit`.

        Raises:
            ChildTimeout: no answer within the limit.
            ChildDied: the child exited, or the pool was closed.
            Unavailable: no child can be started.
        """
        with self._borrowed() as child, (cancellation or Cancellation()).covers(child):
            return child.exchange(request, seconds, wall=wall)

    def close(self) -> None:
        """Kill the children, which ends their work; queued work is dropped."""
        with self._lock:
            self._closed = True
            for child in self._children:
                child.kill()
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._discard(self._idle.get_nowait())

    @contextmanager
    def _borrowed(self) -> Iterator[Child]:
        """Context for a child that is returned as idle after a complete exchange, and killed
        otherwise."""
        child, completed = self._take(), False
        try:
            yield child
            completed = True
        finally:
            if completed:
                self._idle.put(child)
            else:
                self._discard(child)

    def _take(self) -> Child:
        """Return a running idle child, else a new one."""
        while True:
            try:
                child = self._idle.get_nowait()
            except queue.Empty:
                return self._new()
            if child.alive:
                return child
            self._discard(child)

    def _new(self) -> Child:
        """Start a child and wait until it has confirmed the setup."""
        child = self._spawn()
        try:
            child.exchange(self._setup, _STARTUP_SECONDS, wall=True)
        except ChildDied as error:
            self._discard(child)
            log.error("a child process for %s does not start: %r", self._purpose, error)
            raise Unavailable(
                f"{self._purpose} is not available at the moment. Try again later.", retry_after=2
            ) from error
        return child

    def _spawn(self) -> Child:
        with self._lock:
            if self._closed:
                raise ChildDied
            child = Child(self._module)
            self._children.add(child)
        return child

    def _discard(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()
