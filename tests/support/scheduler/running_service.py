"""The scheduler service in a thread, and gateways that are driven by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton import __version__
from baton.net.discovery import StaticDirectory
from baton.net.handshake import ClientHandshake, incarnation
from baton.net.sockets import Client, wait
from baton.net.topology import FRONTEND
from baton.process.lifecycle import Lifecycle
from baton.protocol import (
    CacheReset,
    Failed,
    Hello,
    Message,
    PhaseTimes,
    Sampling,
    Stats,
    Submit,
    Tokens,
)
from baton.protocol.token_columns import pack, unpack
from baton.settings import Settings
from baton_scheduler.config import Config
from baton_scheduler.service import serve


class Gateway:
    """A gateway's link to the scheduler, driven by hand."""

    def __init__(self, settings: Settings, name: str = "g") -> None:
        address = StaticDirectory(settings).first(FRONTEND)
        self.client = Client(FRONTEND, address, name.encode())
        self.handshake = ClientHandshake(Hello("gateway", name, incarnation(), __version__))
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, str] = {}
        self.failed: dict[int, Failed] = {}
        self.stats: Stats | None = None
        self.cached: dict[int, int] = {}
        self.resets: list[CacheReset] = []
        self.times: dict[int, PhaseTimes] = {}

    def turn(self) -> None:
        """Beat, and take in what has arrived."""
        now = time.monotonic()
        due = self.handshake.due(now)
        if due is not None:
            self.client.send(due)
        wait((self.client,), 0.01)
        for received in self.client.drain():
            self.handshake.receive(received.message, now)
            self._take(received.message)

    def _take(self, message: Message) -> None:
        if isinstance(message, Stats):
            self.stats = message
        elif isinstance(message, Failed):
            assert message.handle not in self.ends
            self.ends[message.handle], self.failed[message.handle] = "failed", message
        elif isinstance(message, CacheReset):
            self.resets.append(message)
        elif isinstance(message, Tokens):
            self.cached |= message.cached
            tokens = iter(unpack(message.tokens))
            for handle, first in zip(
                unpack(message.handles, "I"), unpack(message.first, "I"), strict=True
            ):
                log = self.tokens.setdefault(handle, [])
                assert first == len(log) and handle not in self.ends
                log.append(next(tokens))
            self.ends |= message.finished
            self.times |= message.phase_times

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Take part until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            self.turn()

    def join(self) -> None:
        """Wait until the scheduler knows this gateway."""
        self.until(lambda: self.handshake.server is not None)

    def submit(self, handle: int, prompt: list[int], sampling: Sampling) -> None:
        """Send one sequence."""
        assert self.client.send(Submit(handle, f"r{handle}", pack(prompt), sampling))

    def worker_states(self) -> dict[str, str]:
        """State of each worker by name, as last told."""
        return {} if self.stats is None else {w.name: w.state for w in self.stats.workers}


@contextmanager
def scheduler(config: Config, drain_seconds: float = 10.0) -> Iterator[Lifecycle]:
    """The real service in a thread."""
    life, codes = Lifecycle(drain_seconds), []
    thread = threading.Thread(target=lambda: codes.append(serve(config, life)), daemon=True)
    thread.start()
    try:
        yield life
    finally:
        life.stop()
        thread.join(timeout=60)
    assert codes == [0]


@contextmanager
def gateway(settings: Settings, name: str = "g") -> Iterator[Gateway]:
    """A gateway that has joined."""
    made = Gateway(settings, name)
    with made.client:
        made.join()
        yield made


def requests(count: int, max_tokens: int = 20) -> dict[int, tuple[list[int], Sampling]]:
    """Handle -> prompt and sampling."""
    return {n: ([n, n + 1, n + 2], Sampling(max_tokens, seed=n)) for n in range(1, count + 1)}
