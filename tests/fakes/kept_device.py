"""A keeper of a device double, for engines of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint import kept_layers
from baton_worker.device_keeper.keeper import DeviceKeeper
from baton_worker.device_keeper.kept_memory import KeeperClient
from tests.fakes.host_memory import HostDriver, HostOpener


@dataclass(frozen=True)
class KeptDevice:
    """The keeper, its memory and a client."""

    keeper: DeviceKeeper
    driver: HostDriver
    client: KeeperClient


@contextmanager
def kept_device(run_dir: Path, folder: Path) -> Iterator[KeptDevice]:
    """A keeper that every worker of this process finds, whatever its device. `folder`: for what
    stands for allocations."""
    driver, client = HostDriver(folder), KeeperClient(run_dir, 0, HostOpener(folder))
    client._watched = True  # It is this process.
    keeper = DeviceKeeper(run_dir, 0, driver)
    keeper.listen()
    keeper.start()

    def of(run_dir: Path, device: torch.device) -> KeeperClient:
        return client

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeeperClient, "of", of)
        patch.setattr(kept_layers, "BLOCK", 1 << 16)
        try:
            yield KeptDevice(keeper, driver, client)
        finally:
            keeper.close()
