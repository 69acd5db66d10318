"""Copies between host and device that do not make the host wait."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Download(Protocol):
    """A copy to the host that is under way."""

    @property
    def ready(self) -> bool:
        """True if `wait` returns at once."""
        ...

    def wait(self) -> Tensor:
        """Wait for this copy and what was queued before it; returns it, on the host."""
        ...


class DeviceLink(Protocol):
    """Copies of one device, queued on its current stream in order."""

    def pinned(self, size: int) -> Tensor:
        """Page-locked host memory of so many bytes, uint8."""
        ...

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy of pinned memory to the device. The source must stay as it is until a
        `download` that was queued behind it has been waited for."""
        ...

    def download(self, source: Tensor) -> Download:
        """Queue a copy to the host."""
        ...


class CudaLink:
    """See `DeviceLink`. Events tell when a copy has ended: waiting for one does not wait for what
    was queued behind it."""

    def pinned(self, size: int) -> Tensor:
        """See `DeviceLink`."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def upload(self, source: Tensor, target: Tensor) -> None:
        """See `DeviceLink`."""
        target.copy_(source, non_blocking=True)

    def download(self, source: Tensor) -> Download:
        """See `DeviceLink`."""
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        return _CudaDownload(target.copy_(source, non_blocking=True))


class _CudaDownload:
    def __init__(self, target: Tensor) -> None:
        self._target = target
        self._event = torch.cuda.Event()
        self._event.record()

    @property
    def ready(self) -> bool:
        """See `Download`."""
        return bool(self._event.query())

    def wait(self) -> Tensor:
        """See `Download`."""
        self._event.synchronize()
        return self._target
