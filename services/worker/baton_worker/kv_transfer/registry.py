"""Names of the ways in which keys and values get to another worker. No torch: settings read it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from baton.errors import SettingsError
from baton.registry import Registry

TRANSPORTS = Registry(
    "transports",
    {
        "nixl": "baton_worker.kv_transfer.nixl:Nixl",
        "shm": "baton_worker.kv_transfer.shm:Shm",
        "tcp": "baton_worker.kv_transfer.tcp:Tcp",
    },
)
"""Best first. The contract is `baton_worker.kv_transfer.transport.Transport`."""


def split(value: str) -> tuple[str, ...]:
    """The names in a list with commas, each known and there once. Raises `SettingsError`."""
    names = tuple(TRANSPORTS.check(name.strip()) for name in value.split(","))
    if len(set(names)) < len(names):
        raise SettingsError(f"'{value}' names a transport twice.")
    return names


def _check(value: str) -> str:
    try:
        return ",".join(split(value))
    except SettingsError as error:
        raise ValueError(error.message) from error


Transports: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: some of `TRANSPORTS`, best first, separated by commas."""
