"""Store of objects that clients made and may ask for later: responses, conversations.

Several gateways may share a store. An object is changed only with its newest version in hand, so
none of two simultaneous changes is lost: the second one is refused and made again.
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
    """Its prefix up to the first "_" is its kind."""
    owner: str
    """Tenant that may see it; empty when no key is needed."""
    data: bytes
    version: int = 0
    """Number of changes; 0 if it is not stored yet."""
    due: float = 0.0
    """Unix time in seconds when a gateway must look after it; 0 means never."""

    @property
    def kind(self) -> str:
        """The kind of object."""
        return self.id.partition("_")[0]


def lost() -> Unavailable:
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
        """What an operator should know about it; empty while all is well."""

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
        """Return some objects of a kind that are due, each to one caller.

        This is a change of each: it is due again in `seconds`.
        """

    async def prune(self) -> None:
        """Delete expired objects."""

    async def close(self) -> None:
        """Close the file or connection; objects are kept."""


async def prune_forever(store: ObjectStore) -> None:
    """Delete expired objects from time to time."""
    while True:
        await asyncio.sleep(_PRUNE_SECONDS)
        with contextlib.suppress(Unavailable):  # the store has logged it
            await store.prune()


def open_store(config: Config) -> ObjectStore:
    """Open the store that the settings select."""
    name = config.store or ("redis" if config.redis_url else "sqlite")
    store: ObjectStore = STORES.load(name)(config)
    return store
