"""Blocks over NIXL from the memory of one GPU to that of another: GPUDirect RDMA between hosts,
NVLink or PCIe within one. No host touches them.

UCX must have its CUDA transports. It is not among the default transports, since no GPU has run it:
`--kv-transports nixl_gpu,nixl,tcp`.
"""

from __future__ import annotations

from typing import Any

import torch

from baton_worker.config import Config
from baton_worker.kv_transfer.nixl import Nixl
from baton_worker.kv_transfer.nixl_buffers import Buffer, GpuBuffer
from baton_worker.kv_transfer.transport import Size, UnusableError


class NixlGpu(Nixl):
    """Needs the package `nixl` and a GPU. See `transport.Transport`."""

    on_device = True
    local_transports = "self,sm,cuda_copy,cuda_ipc"

    def __init__(self, config: Config, device: torch.device | None = None) -> None:
        """`device`: None means the GPU of this process."""
        if device is None:
            if config.device == "cpu" or not torch.cuda.is_available():
                raise UnusableError("this worker has no GPU")
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        super().__init__(config)

    def buffer(self, agent: Any, size: Size) -> Buffer:
        """See `Nixl`."""
        return GpuBuffer(agent, size, self._device)
