"""Names of the KV transports. Imports no torch, since settings read it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from baton.errors import SettingsError, as_value_error
from baton.registry import Registry

TRANSPORTS = Registry(
    "transports",
    {
        "cuda_ipc": "baton_worker.kv_transfer.cuda_ipc:CudaIpc",
        "nixl_gpu": "baton_worker.kv_transfer.nixl_gpu:NixlGpu",
        "nixl": "baton_worker.kv_transfer.nixl:Nixl",
        "shm": "baton_worker.kv_transfer.shm:Shm",
        "tcp": "baton_worker.kv_transfer.tcp:Tcp",
    },
)
"""In order of preference. The contract is `baton_worker.kv_transfer.transport.Transport`."""


def split(value: str) -> tuple[str, ...]:
    """Split a comma-separated list of distinct known transports. Raises `SettingsError`."""
    names = tuple(TRANSPORTS.check(name.strip()) for name in value.split(","))
    if len(set(names)) < len(names):
        raise SettingsError(f"'{value}' names a transport twice.")
    return names


def _check(value: str) -> str:
    with as_value_error():
        return ",".join(split(value))


Transports: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: a comma-separated subset of `TRANSPORTS`, in order of preference."""
