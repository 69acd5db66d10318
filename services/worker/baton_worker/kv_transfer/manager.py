"""KV transfer of one worker: an exporter and an importer."""

from __future__ import annotations

import os
from pathlib import Path

from baton.errors import SettingsError
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import bind_address, reachable
from baton.net.topology import PAGES, Link
from baton.protocol import Grant, Pull, Pulled, Revoke
from baton.protocol.token_columns import unpack
from baton_worker.config import Config
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.page_content import PageContent, device_of
from baton_worker.kv_transfer.registry import TRANSPORTS, split
from baton_worker.kv_transfer.transport import Transport, UnusableError

_BOOT = Path("/proc/sys/kernel/random/boot_id")

log = logger(__name__)


class KVTransferManager:
    """Life cycle: `start`; then `take` and `finished` from the main thread; `reset` for a new
    scheduler; `close`."""

    progress = 0
    """A counter that advances while other ranks compute: there are none."""

    def __init__(self, cache: KVCache, config: Config, name: str) -> None:
        keys = own_keys(config)
        on_device = device_of(cache).type != "cpu"
        self.transports, here = usable(config, on_device=on_device), host(config)
        """By name, in order of preference; closed with this manager."""
        content = PageContent(cache)
        self._exporter = Exporter(
            content,
            bound_address(config),
            self.transports,
            here,
            trusted_network=config.trusted_network,
            keys=keys,
        )
        self._importer = Importer(content, name, self.transports, here, keys)
        self.address = config.advertise_kv or reachable(self._exporter.address)
        """Address at which other workers reach this worker's pages."""
        self.layout = content.layout

    @property
    def busy(self) -> bool:
        """Whether KV is being pulled into this worker."""
        return self._importer.busy

    def start(self) -> None:
        """Start to serve pages."""
        self._exporter.start()

    def close(self) -> None:
        """Close both sides, their sockets and connections."""
        self._importer.close()
        self._exporter.stop()
        for transport in self.transports.values():
            transport.close()

    def reset(self) -> None:
        """Forget all transfers: the pages now belong to other sequences."""
        self._importer.reset()
        self._exporter.reset()

    def take(self, message: Grant | Revoke | Pull) -> None:
        """Handle a scheduler message. A grant that does not fit is ignored: its pull will fail."""
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


def bound_address(config: Config) -> str:
    """Address at which other workers pull from this process."""
    # The process id in the name, since several workers may share a run directory.
    link = Link(f"{PAGES.name}-{os.getpid()}", PAGES.server, PAGES.client, (), ())
    return bind_address(config, link, config.bind_kv)


def usable(config: Config, *, on_device: bool = False) -> dict[str, Transport]:
    """The configured transports that this machine supports, in order of preference. `on_device`:
    the content is on a GPU.

    Raises:
        SettingsError: none is left, or one requested through vLLM's setting is unavailable.
    """
    transports, missing = dict[str, Transport](), dict[str, str]()
    for name in split(config.kv_transports):
        try:
            kind = TRANSPORTS.load(name)
            if kind.on_device and not on_device:
                missing[name] = "what passes is not on a GPU"
                continue
            transports[name] = kind(config)
        except UnusableError as error:
            missing[name] = error.message
            log.info("no KV passes over %s: %s", name, error.message)
    if missing and (config.kv_transfer_config or not transports):
        raise SettingsError(
            "; ".join(f"{name} was asked for, but {missing[name]}" for name in missing)
        )
    log.info("KV passes to other workers over %s", ", ".join(transports))
    return transports


def host(config: Config) -> str:
    """Identifies processes that can share memory: the machine's boot id, and the run directory,
    since containers must mount it to share it."""
    config.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    where = config.run_dir.stat()
    boot = _BOOT.read_text().strip() if _BOOT.exists() else "unknown"
    return f"{boot}/{where.st_dev}/{where.st_ino}"
