"""Store of objects that clients create and may request later: responses, conversations.

Several gateways may share a store. A change must name the newest version of an object, so that
concurrent changes are not lost: the second one is refused and retried.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import msgspec

from baton.errors import Unavailable
from baton_gateway.config import Config
from baton_gateway.durable import STORES

_PRUNE_SECONDS = 60.0


class StoredObject(msgspec.Struct, frozen=True):
    """An object at one version."""

    id: str
    """The part before the first "_" is its kind."""
    owner: str
    """Tenant that may see it; empty when no key is needed."""
    data: bytes
    version: int = 0
    """Number of changes; 0 if it is not stored yet."""
    due: float = 0.0
    """Unix time in seconds when a gateway must process it; 0 means never."""

    @property
    def kind(self) -> str:
        """The kind of object."""
        return self.id.partition("_")[0]


def unavailable() -> Unavailable:
    """Error for a store that is unavailable."""
    return Unavailable(
        "The store of responses does not answer. Try again later, or with 'store' false.",
        code="store_unavailable",
        retry_after=2,
    )


def full() -> Unavailable:
    """Error for a store that is full."""
    return Unavailable(
        "The store of responses is full. Try again later, or with 'store' false.",
        code="store_full",
        retry_after=30,
    )


class ObjectStore(Protocol):
    """Opens on first use. Every method but `close` raises `Unavailable` when it is unavailable."""

    @property
    def problem(self) -> str:
        """Problem to report to the operator; empty if there is none."""

    async def get(self, name: str, owner: str) -> StoredObject | None:
        """Return an object. None when `owner` has none of that name."""

    async def put(self, new: StoredObject) -> bool:
        """Store an object as the version after `new.version`.

        Returns False, without effect, if that is not the stored version. Raises `Unavailable` when
        the store is full.
        """

    async def delete(self, name: str, owner: str) -> bool:
        """Delete an object. Returns whether `owner` had one of that name."""

    async def take_due(self, kind: str, seconds: float) -> list[StoredObject]:
        """Return some due objects of a kind, each to one caller.

        This changes each of them: it is due again in `seconds`.
        """

    async def prune(self) -> None:
        """Delete expired objects."""

    async def close(self) -> None:
        """Close the file or connection; objects are kept."""


async def prune_forever(store: ObjectStore) -> None:
    """Delete expired objects periodically."""
    while True:
        await asyncio.sleep(_PRUNE_SECONDS)
        with contextlib.suppress(Unavailable):  # The store has logged it.
            await store.prune()


def open_store(config: Config) -> ObjectStore:
    """Open the configured store."""
    name = config.store or ("redis" if config.redis_url else "sqlite")
    store: ObjectStore = STORES.load(name)(config)
    return store
