"""How pixels reach workers: in shared memory, over a link to other hosts, or in messages."""

from __future__ import annotations

from pathlib import Path

from baton.net.discovery import Directory
from baton.net.topology import FRONTEND
from baton.process.pixel_store import SHARES_MEMORY, PixelStore
from baton_gateway.clients.pixel_server import PixelServer
from baton_gateway.config import Config


class PixelSharing:
    """Life cycle: `serve` at the start, `store` many times, `close` at the end."""

    def __init__(self, config: Config, directory: Directory) -> None:
        self._config, self._directory = config, directory
        self._store: PixelStore | None = None
        self._server: PixelServer | None = None

    def serve(self) -> None:
        """Serve pixels to workers of other hosts, if configured. Raises `SettingsError`."""
        if self._config.bind_pixels and (store := self.store()) is not None:
            self._server = PixelServer(store, self._config)
            self._server.start()

    def store(self) -> PixelStore | None:
        """Shared memory for pixels, created on first use; None if they are sent in messages because
        workers may be on another host."""
        if not self._is_reached():
            return None
        if self._store is None:
            self._store = PixelStore(self._config.run_dir, self._config.max_pixel_bytes)
            self._store.start()
        return self._store

    def _is_reached(self) -> bool:
        """Whether workers can map, or fetch, what is in the store."""
        mode, scheduler = self._config.mm_tensor_ipc, self._directory.first(FRONTEND) or ""
        near = scheduler.startswith("ipc://") and Path(scheduler.removeprefix("ipc://")).exists()
        reached = near or mode == "shm" or bool(self._config.bind_pixels)
        return mode != "direct_rpc" and reached and SHARES_MEMORY

    def close(self) -> None:
        """Stop the server and free the memory."""
        if self._server is not None:
            self._server.stop()
        if self._store is not None:
            self._store.close()
