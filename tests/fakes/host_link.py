"""A device link of the CPU: what is copied is there at once."""

from __future__ import annotations

import torch
from torch import Tensor


class HostLink:
    """See `DeviceLink`."""

    def pinned(self, size: int) -> Tensor:
        """See `DeviceLink`."""
        return torch.zeros(size, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        """See `DeviceLink`."""
        target.copy_(source)

    def download(self, source: Tensor) -> HostDownload:
        """See `DeviceLink`."""
        return HostDownload(source.clone())


class HostDownload:
    """See `Download`."""

    ready = True

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def wait(self) -> Tensor:
        """See `Download`."""
        return self._value
