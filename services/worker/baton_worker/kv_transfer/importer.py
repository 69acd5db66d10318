"""The target's half: pull keys and values into own pages while steps run."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from baton.logs import logger
from baton.net.curve import CurveKeys
from baton.protocol import Pull, Pulled
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.connection import TransferConnection
from baton_worker.kv_transfer.transport import (
    CarriageError,
    TransferError,
    Transport,
)
from baton_worker.kv_transfer.wire_format import (
    Tables,
    extents,
    tables,
    write,
)

_MOST_PULLS = 4
"""Pulls that run at once; more wait."""
_LANE_SECONDS = 30.0
"""How long a lane is kept for the next pull from the same source."""

log = logger(__name__)


class Importer:
    """Life cycle: `start` per pull, `finished` often, `reset` when the scheduler is a new one,
    `close`."""

    def __init__(
        self,
        cache: KVCache,
        name: str,
        transports: dict[str, Transport],
        host: str,
        keys: CurveKeys | None = None,
    ) -> None:
        self._cache, self._name, self._keys = cache, name, keys
        self._transports, self._host = transports, host
        self._spoiled: set[tuple[str, str]] = set()
        """(address, transport): what has failed there, and is not offered there again."""
        self._idle: deque[TransferConnection] = deque()
        """Lanes without a pull, the one that was used last at the right."""
        self._lock = threading.Lock()
        self._done: deque[Pulled] = deque()
        self._running = 0
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(_MOST_PULLS, thread_name_prefix="importer")

    @property
    def busy(self) -> bool:
        """A pull runs, or its end has not been told yet."""
        return self._running > 0

    def start(self, pull: Pull) -> None:
        """Pull in the background."""
        self._running += 1
        self._pool.submit(self._run, pull)

    def finished(self) -> list[Pulled]:
        """Pulls that have ended since the last call."""
        ended = [self._done.popleft() for _ in range(len(self._done))]
        self._running -= len(ended)
        return ended

    def reset(self) -> None:
        """Let every pull end before its pages are given to others, and forget them."""
        self.close()
        self._pool = ThreadPoolExecutor(_MOST_PULLS, thread_name_prefix="importer")
        self._stopped.clear()
        self._done.clear()
        self._spoiled.clear()
        self._running = 0

    def close(self) -> None:
        """End every pull and every lane."""
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        while self._idle:
            self._idle.popleft().close()

    def _run(self, pull: Pull) -> None:
        begun, reason, size = time.monotonic(), "", 0
        lane: TransferConnection | None = None
        try:
            pages = self._pages(pull)
            lane = self._lane(pull.address)
            size = self._pull(lane, pull, pages)
        except TransferError as error:
            reason = str(error)
        except Exception:
            log.exception("pull %d failed", pull.id)
            reason = "the target failed"
        took = int((time.monotonic() - begun) * 1e6)
        transport = lane.transport if lane is not None else ""
        self._leave(lane, reason)
        self._done.append(Pulled(pull.epoch, pull.id, reason, size, took, transport))

    def _pages(self, pull: Pull) -> Tables:
        try:
            pages = tables(self._cache, pull.pages)
        except ValueError as error:
            raise TransferError(f"its pages do not fit this worker: {error}") from error
        if not 0 <= pull.start < pull.end <= pages.shape[1] * self._cache.page_size:
            raise TransferError("its pages do not fit this worker")
        return pages

    def _lane(self, address: str) -> TransferConnection:
        """One that is there and free, or a new one that is not open yet."""
        with self._lock:
            self._expire()
            for lane in self._idle:
                if lane.address == address:
                    self._idle.remove(lane)
                    return lane
        return TransferConnection(self._cache, self._name, address, self._stopped, self._keys)

    def _expire(self) -> None:
        """No lane is kept for ever: its source may be gone, or think that we are."""
        oldest = time.monotonic() - _LANE_SECONDS
        while self._idle and self._idle[0].used < oldest:
            self._idle.popleft().close()

    def _pull(self, lane: TransferConnection, pull: Pull, pages: Tables) -> int:
        wanted = extents(self._cache, pull.start, pull.end, pages)
        try:
            if not lane.transport:
                lane.open(pull, self._offered(pull.address), self._host)
            return lane.carry(pull, wanted, partial(write, self._cache, pages))
        except CarriageError as error:
            self._spoil(lane, str(error))
            raise

    def _offered(self, address: str) -> dict[str, Transport]:
        """All that is not known to fail at this source."""
        return {n: t for n, t in self._transports.items() if (address, n) not in self._spoiled}

    def _spoil(self, lane: TransferConnection, reason: str) -> None:
        """Not this transport again at this source. What needs nothing special stays."""
        if lane.transport != "tcp":
            self._spoiled.add((lane.address, lane.transport))
            log.warning("no keys of %s over %s any more: %s", lane.address, lane.transport, reason)

    def _leave(self, lane: TransferConnection | None, reason: str) -> None:
        """Keep a lane that has done well for the next pull."""
        if lane is not None and reason:
            lane.close()
        elif lane is not None:
            with self._lock:
                self._idle.append(lane)
