"""Serves pixels to workers of other hosts, by the tokens of their handles."""

from __future__ import annotations

import threading

from baton.net.curve import own_keys
from baton.net.discovery import reachable
from baton.net.sockets import Server, wait
from baton.net.topology import PIXELS
from baton.process.pixel_store import PixelStore
from baton.protocol import TakenPixels, TakePixels
from baton_gateway.config import Config

_IDLE_SECONDS = 0.2


class PixelServer(threading.Thread):
    """Sends pixels from a store, in its own thread. Life cycle: `start`, `stop`."""

    def __init__(self, store: PixelStore, config: Config) -> None:
        """Bind the configured address, and set in `store` under which address it is reached.

        Raises:
            SettingsError: the address is unprotected, see `baton.net.sockets.check_bind`.
        """
        super().__init__(name="pixel-server", daemon=True)
        trusted, keys = config.trusted_network, own_keys(config)
        self._store = store
        self._server = Server(PIXELS, config.bind_pixels, trusted_network=trusted, keys=keys)
        self._stopped = threading.Event()
        store.remote = config.advertise_pixels or reachable(self._server.address)

    def run(self) -> None:
        """Answer until `stop`."""
        with self._server as server:
            while not self._stopped.is_set():
                wait((server,), _IDLE_SECONDS)
                for received in server.drain():
                    if isinstance(received.message, TakePixels):
                        token = received.message.token
                        server.send(received.peer, TakenPixels(token, self._store.read(token)))

    def stop(self) -> None:
        """Stop the thread and close the socket."""
        self._stopped.set()
        self.join()
