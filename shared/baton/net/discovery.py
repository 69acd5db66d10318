"""Addresses of other services: static settings, or leases in Redis.

An address in the settings takes precedence over a lease, so a deployment can mix both.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from baton.errors import SettingsError
from baton.logs import logger
from baton.net.topology import (
    FLEET,
    FRONTEND,
    MEDIA,
    TOKENIZE,
    Link,
)
from baton.settings import Settings

LEASE_SECONDS = 5
"""Lifetime of a lease that is not renewed."""
_RENEW_SECONDS = 1.0

log = logger(__name__)


class Directory(Protocol):
    """Address directory. Call `announce` once after binding, `find` at any time, `close` at the
    end.

    No call blocks on the network; an unreachable directory returns its last known addresses.
    """

    def announce(self, link: Link, name: str, address: str) -> None:
        """Publish that this process serves `link` at `address`, until `close`."""

    def find(self, link: Link) -> tuple[str, ...]:
        """Addresses that serve `link`, or served it last if none does, sorted."""

    def first(self, link: Link) -> str:
        """Address of a link with a single server; empty if unknown."""

    def close(self) -> None:
        """Withdraw all announcements."""


def _configured(settings: Settings, link: Link) -> tuple[str, ...]:
    addresses = {
        TOKENIZE: settings.tokenizer_address,
        MEDIA: settings.mm_preprocess_address,
        FRONTEND: settings.scheduler_address,
        FLEET: settings.fleet_address,
    }[link]
    return tuple(a.strip() for a in addresses.split(",") if a.strip())


def socket_path(run_dir: Path, link: Link) -> str:
    """The ipc address of a link in a run directory. Raises `SettingsError` if it is too long."""
    path = (run_dir / f"{link.name}.sock").absolute()
    if len(str(path)) > 100:
        raise SettingsError(
            f"The run directory is too deep for a socket ({path}). Choose a shorter BATON_RUN_DIR."
        )
    return f"ipc://{path}"


def make_run_dir(folder: Path) -> None:
    """Create the run directory with mode 0700. Raises `SettingsError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"Cannot create --run-dir {folder}: {error.strerror}. Choose another BATON_RUN_DIR."
        ) from error


def bind_address(settings: Settings, link: Link, configured: str) -> str:
    """Address that a server binds: the configured one, or a socket in the run directory."""
    if configured:
        return configured
    make_run_dir(settings.run_dir)
    return socket_path(settings.run_dir, link)


def reachable(address: str) -> str:
    """Address under which other hosts reach a socket bound at `address`."""
    host = f"tcp://{socket.gethostname()}:"
    return address.replace("tcp://*:", host).replace("tcp://0.0.0.0:", host)


class StaticDirectory:
    """Addresses from the settings, else sockets in the run directory."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._addresses: dict[Link, tuple[str, ...]] = {}

    def announce(self, link: Link, name: str, address: str) -> None:
        """Do nothing: all services have the same settings."""

    def find(self, link: Link) -> tuple[str, ...]:
        # Services ask in every turn of their loops.
        if link not in self._addresses:
            configured = _configured(self._settings, link)
            self._addresses[link] = configured or (socket_path(self._settings.run_dir, link),)
        return self._addresses[link]

    def first(self, link: Link) -> str:
        return self.find(link)[0]

    def close(self) -> None:
        """Do nothing."""


class RedisDirectory:
    """Leases in Redis, renewed and read by a thread, so that callers never wait for Redis.

    A link whose leases have all gone keeps the last addresses.

    Redis key `baton:<link>:<name>` holds an address and expires after `LEASE_SECONDS`.
    """

    def __init__(self, settings: Settings, connect: Callable[[str], Any] | None = None) -> None:
        self._settings = settings
        self._redis: Any = (connect or _connect)(settings.redis_url)
        """A client of Redis, which is imported only where it is used."""
        self._mine: dict[str, str] = {}
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._answered = True
        self._stopped = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="directory", daemon=True)
        self._thread.start()

    def announce(self, link: Link, name: str, address: str) -> None:
        self._mine[f"baton:{link.name}:{name}"] = reachable(address)
        self.refresh()

    def find(self, link: Link) -> tuple[str, ...]:
        return _configured(self._settings, link) or self._addresses.get(link.name, ())

    def first(self, link: Link) -> str:
        addresses = self.find(link)
        return addresses[0] if addresses else ""

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=2.0)
        for key in self._mine:
            self._try(partial(self._redis.delete, key))

    def refresh(self) -> None:
        """Renew this process's leases and read all others. Keeps the last view if Redis is
        unreachable."""
        self._try(self._refresh)

    def _refresh(self) -> None:
        redis = self._redis
        for key, address in self._mine.items():
            redis.set(key, address, ex=LEASE_SECONDS)
        addresses: dict[str, list[str]] = {}
        for lease in redis.scan_iter("baton:*", count=1000):
            _, link, _ = lease.decode().split(":", 2)
            value = redis.get(lease)
            if value is not None:
                addresses.setdefault(link, []).append(value.decode())
        # A link without any lease keeps its last servers: a Redis that restarted is empty until all
        # have renewed, and a busy server renews late. Connections say whether a server is alive.
        self._addresses |= {link: tuple(sorted(names)) for link, names in addresses.items()}

    def _try(self, action: Callable[[], object]) -> None:
        from redis.exceptions import RedisError

        try:
            action()
        except RedisError as error:
            if self._answered:
                log.warning("Redis does not answer (%s): going on with what was known", error)
            self._answered = False
        else:
            self._answered = True

    def _run(self) -> None:
        while not self._stopped.wait(_RENEW_SECONDS):
            self.refresh()


def _connect(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)


def directory(settings: Settings) -> Directory:
    """The directory selected by the settings."""
    return RedisDirectory(settings) if settings.redis_url else StaticDirectory(settings)


__all__ = [
    "Directory",
    "RedisDirectory",
    "StaticDirectory",
    "bind_address",
    "directory",
    "reachable",
    "socket_path",
]
