"""The target's half: pull keys and values into own pages while steps run."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

from baton.keys import Keys
from baton.logs import logger
from baton.protocol import Block, Fetch, Message, Missing, Pull, Pulled
from baton.tokens import unpack
from baton.topology import PAGES
from baton.transport import Client, wait
from baton_worker.kv.cache import KVCache
from baton_worker.kv.transfer.extent import Extent, dtype_name, extents, write

_PATIENCE_SECONDS = 5.0
"""How long a source may send nothing before the pull has failed."""
_AGAIN_SECONDS = 0.002
"""Pause before asking again for what the source has not been granted yet."""
_IN_FLIGHT = 8
"""Blocks asked for and not yet there: several layers travel at once."""
_MOST_PULLS = 4
"""Pulls that run at once; more wait."""

log = logger(__name__)


class TransferError(Exception):
    """This pull has failed, and says why. The sequence is recomputed: never a wrong token."""


class Importer:
    """Life cycle: `start` per pull, `finished` often, `reset` when the scheduler is a new one."""

    def __init__(self, cache: KVCache, name: str, keys: Keys | None = None) -> None:
        self._cache, self._name, self._keys = cache, name, keys
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
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = ThreadPoolExecutor(_MOST_PULLS, thread_name_prefix="importer")
        self._stopped.clear()
        self._done.clear()
        self._running = 0

    def _run(self, pull: Pull) -> None:
        begun, reason, size = time.monotonic(), "", 0
        try:
            size = self._pull(pull)
        except TransferError as error:
            reason = str(error)
        except Exception:
            log.exception("pull %d failed", pull.id)
            reason = "the target failed"
        took = int((time.monotonic() - begun) * 1e6)
        self._done.append(Pulled(pull.epoch, pull.id, reason, size, took))

    def _pull(self, pull: Pull) -> int:
        """Fetch all blocks, some in flight at a time. Returns how many bytes they had."""
        waiting = deque(self._wanted(pull))
        pages = unpack(pull.pages, "I").tolist()
        asked: dict[tuple[int, int], Extent] = {}
        size = 0
        identity = f"{self._name}/{pull.id}/{pull.start}".encode()
        with Client(PAGES, pull.address, identity, self._keys) as client:
            advanced = time.monotonic()
            while waiting or asked:
                self._ask(client, pull, waiting, asked)
                wait((client,), _AGAIN_SECONDS)
                for received in client.drain():
                    taken = self._take(received.message, pages, waiting, asked)
                    advanced = time.monotonic() if taken else advanced
                    size += taken
                if self._stopped.is_set():
                    raise TransferError("this worker has left")
                if time.monotonic() - advanced > _PATIENCE_SECONDS:
                    raise TransferError("the source sends nothing")
        return size

    def _wanted(self, pull: Pull) -> list[Extent]:
        pages = unpack(pull.pages, "I").tolist()
        held = len(pages) * self._cache.page_size
        if not 0 <= pull.start < pull.end <= held or max(pages) >= self._cache.num_pages:
            raise TransferError("its pages do not fit this worker")
        return extents(self._cache, pull.start, pull.end)

    def _ask(
        self,
        client: Client,
        pull: Pull,
        waiting: deque[Extent],
        asked: dict[tuple[int, int], Extent],
    ) -> None:
        while waiting and len(asked) < _IN_FLIGHT:
            extent = waiting[0]
            fetch = Fetch(pull.id, pull.token, extent.layer, extent.start, extent.end)
            if not client.send(fetch):  # Not connected yet.
                return
            asked[extent.layer, extent.start] = waiting.popleft()

    def _take(
        self,
        message: Message,
        pages: list[int],
        waiting: deque[Extent],
        asked: dict[tuple[int, int], Extent],
    ) -> int:
        """Store a block, or put what is not granted yet back in line. Returns its bytes."""
        assert isinstance(message, Block | Missing)
        extent = asked.pop((message.layer, message.start), None)
        if extent is None:
            raise TransferError("the source sends what was not asked for")
        if isinstance(message, Missing):
            if message.reason == "refused":
                raise TransferError("the source refuses")
            waiting.append(extent)
            time.sleep(_AGAIN_SECONDS)
            return 0
        if crc32(message.data) != message.checksum:
            raise TransferError("a block is corrupt")
        if message.dtype != dtype_name(self._cache, extent.layer):
            raise TransferError(f"the source stores {message.dtype}")
        try:
            write(self._cache, pages, extent, message.data)
        except ValueError as error:
            raise TransferError(f"a block has the wrong size: {error}") from error
        return len(message.data)
