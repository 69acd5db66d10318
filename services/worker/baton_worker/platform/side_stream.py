"""A stream beside that of the steps: copies on it run while steps do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from baton_worker.platform.device_link import CudaLink, DeviceLink


class Fence(Protocol):
    """A place in the work of the stream of steps."""

    def wait(self) -> None:
        """Work that is queued on the side stream from now on runs after it. The host does not
        wait."""
        ...


class SideStream(DeviceLink, Protocol):
    """Any thread may use it. Within `queue`, operators and copies of this link are queued on it."""

    def queue(self) -> AbstractContextManager[object]:
        """Queue the work of a block of code."""
        ...

    def fence(self) -> Fence:
        """Behind all that the stream of steps has been given so far."""
        ...

    def settle(self) -> None:
        """Wait for what has been queued here; steps go on."""
        ...


class CudaSideStream(CudaLink):
    """See `SideStream`. Torch's streams do not wait for the default stream, which steps run on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def queue(self) -> AbstractContextManager[object]:
        """See `SideStream`."""
        return torch.cuda.stream(self._stream)

    def fence(self) -> Fence:
        """See `SideStream`."""
        event = torch.cuda.Event()
        event.record(torch.cuda.default_stream(self._device))
        return _CudaFence(self._stream, event)

    def settle(self) -> None:
        """See `SideStream`."""
        event = torch.cuda.Event()
        event.record(self._stream)
        event.synchronize()


class _CudaFence:
    def __init__(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        self._stream, self._event = stream, event

    def wait(self) -> None:
        """See `Fence`."""
        self._stream.wait_event(self._event)


def side_stream(device: torch.device) -> SideStream | None:
    """A new stream of a GPU; None for a CPU, which has none."""
    return CudaSideStream(device) if device.type == "cuda" else None
