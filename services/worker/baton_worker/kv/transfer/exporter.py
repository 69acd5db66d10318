"""The source's half: serve the pages that the scheduler has granted, and nothing else."""

from __future__ import annotations

import hmac
import threading
from zlib import crc32

from baton.errors import SettingsError
from baton.keys import Keys
from baton.logs import logger
from baton.protocol import Block, Fetch, Grant, Missing
from baton.tokens import unpack
from baton.topology import PAGES
from baton.transport import Server, wait
from baton_worker.kv.cache import KVCache
from baton_worker.kv.transfer.extent import BLOCK_BYTES, Extent, dtype_name, read, token_bytes

_TOKEN_BYTES = 16
_IDLE_SECONDS = 0.05

log = logger(__name__)


class Exporter(threading.Thread):
    """Answers `Fetch` from a thread of its own, while steps run.

    What it reads does not change: a grant covers tokens whose keys are final, and the scheduler
    keeps its pages until the target has said `Pulled`.
    """

    def __init__(
        self,
        cache: KVCache,
        address: str,
        *,
        trusted_network: bool = False,
        keys: Keys | None = None,
    ) -> None:
        super().__init__(name="exporter", daemon=True)
        self._cache = cache
        self._server = Server(PAGES, address, trusted_network=trusted_network, keys=keys)
        self._grants: dict[int, tuple[bytes, list[int], int]] = {}
        self._stopped = threading.Event()
        self.refused = 0
        """Requests that no grant covers: a wrong token, or tokens beyond it."""

    @property
    def address(self) -> str:
        """Where it listens, a wildcard port resolved."""
        return self._server.address

    def grant(self, grant: Grant) -> None:
        """Let the holder of the token read these tokens.

        Raises:
            SettingsError: the grant does not fit this cache.
        """
        pages = unpack(grant.pages, "I").tolist()
        held = len(pages) * self._cache.page_size
        if len(grant.token) != _TOKEN_BYTES or not 0 < grant.length <= held:
            raise SettingsError(f"Grant {grant.id} of {grant.length} tokens in {held} slots.")
        if max(pages) >= self._cache.num_pages:
            raise SettingsError(f"Grant {grant.id} names page {max(pages)}, which is not there.")
        self._grants[grant.id] = (grant.token, pages, grant.length)

    def revoke(self, ids: list[int]) -> None:
        """End these grants."""
        for number in ids:
            self._grants.pop(number, None)

    def reset(self) -> None:
        """End all grants: their sequences are gone."""
        self._grants.clear()

    def run(self) -> None:
        with self._server as server:
            while not self._stopped.is_set():
                wait((server,), _IDLE_SECONDS)
                for received in server.drain():
                    if isinstance(received.message, Fetch):
                        server.send(received.peer, self._answer(received.message))

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._stopped.set()
        self.join(timeout=2.0)

    def _answer(self, fetch: Fetch) -> Block | Missing:
        grant = self._grants.get(fetch.id)
        if grant is None:
            return Missing(fetch.id, fetch.layer, fetch.start, "unknown")
        token, pages, length = grant
        if not hmac.compare_digest(token, fetch.token) or not self._covers(fetch, length):
            self.refused += 1
            log.warning("refused to send keys of transfer %d: they are not granted", fetch.id)
            return Missing(fetch.id, fetch.layer, fetch.start, "refused")
        data = read(self._cache, pages, Extent(fetch.layer, fetch.start, fetch.end))
        dtype = dtype_name(self._cache, fetch.layer)
        return Block(fetch.id, fetch.layer, fetch.start, dtype, crc32(data), data)

    def _covers(self, fetch: Fetch, length: int) -> bool:
        if not 0 <= fetch.layer < len(self._cache.layers):
            return False
        if not 0 <= fetch.start < fetch.end <= length:
            return False
        size = token_bytes(self._cache, fetch.layer)
        return fetch.end - fetch.start == 1 or (fetch.end - fetch.start) * size <= BLOCK_BYTES
