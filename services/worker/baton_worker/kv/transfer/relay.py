"""Both halves of this worker: what it passes on, and what it takes over."""

from __future__ import annotations

import os

from baton.discovery import bind_address, reachable
from baton.errors import SettingsError
from baton.keys import own_keys
from baton.logs import logger
from baton.protocol import Grant, Pull, Pulled, Revoke
from baton.tokens import unpack
from baton.topology import PAGES, Link
from baton_worker.config import Config
from baton_worker.kv.cache import KVCache
from baton_worker.kv.transfer.exporter import Exporter
from baton_worker.kv.transfer.extent import dtype_name, token_bytes
from baton_worker.kv.transfer.importer import Importer

log = logger(__name__)


class Relay:
    """Life cycle: `start`, then `take` and `finished` from the main thread, `reset` for a new
    scheduler, `close`."""

    def __init__(self, cache: KVCache, config: Config, name: str) -> None:
        keys = own_keys(config)
        # Several workers share a run directory.
        own = Link(f"{PAGES.name}-{os.getpid()}", PAGES.server, PAGES.client, (), ())
        address = bind_address(config, own, config.bind_pages)
        self._exporter = Exporter(cache, address, trusted_network=config.trusted_network, keys=keys)
        self._importer = Importer(cache, name, keys)
        self.address = config.advertise_pages or reachable(self._exporter.address)
        """Where other workers find this one's pages."""
        self.layout = layout(cache)

    @property
    def busy(self) -> bool:
        """Keys are on their way to this worker."""
        return self._importer.busy

    def start(self) -> None:
        """Serve pages."""
        self._exporter.start()

    def close(self) -> None:
        """End both threads and their sockets."""
        self._importer.reset()
        self._exporter.stop()

    def reset(self) -> None:
        """Forget all transfers: the pages belong to other sequences from now on."""
        self._importer.reset()
        self._exporter.reset()

    def take(self, message: Grant | Revoke | Pull) -> None:
        """Do as the scheduler says. A grant that does not fit is left out: its pull will fail."""
        if isinstance(message, Pull):
            self._importer.start(message)
        elif isinstance(message, Revoke):
            self._exporter.revoke(unpack(message.ids, "Q").tolist())
        else:
            try:
                self._exporter.grant(message)
            except SettingsError as error:
                log.error("the scheduler and this worker disagree: %s", error.message)

    def finished(self) -> list[Pulled]:
        """Pulls that have ended since the last call."""
        return self._importer.finished()


def layout(cache: KVCache) -> str:
    """What a token takes in each layer: only workers of equal layouts pass keys on."""
    return ",".join(
        f"{dtype_name(cache, layer)}x{token_bytes(cache, layer)}"
        for layer in range(len(cache.layers))
    )
