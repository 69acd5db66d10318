"""Blocks of KV between pages on a device and transfer buffers, beside the steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.kv_transfer.transport import BlockBuffer, Bytes
from baton_worker.kv_transfer.wire_format import Ints
from baton_worker.platform.side_stream import Fence, SideStream


class DeviceCopies:
    """Copies on a stream of their own, by pinned memory where one side is the host. A copy waits
    for itself alone: neither for a step, nor does a step wait for it.

    Args:
        stream: that stream.
    """

    def __init__(self, stream: SideStream) -> None:
        self._stream = stream

    def fence(self) -> Fence:
        """Behind the steps that have been launched: one of them may still write to pages whose
        sequence has ended."""
        return self._stream.fence()

    def read(self, layer: Tensor, places: tuple[Ints, Ints], into: BlockBuffer) -> None:
        """Rows of a layer to a block.

        Args:
            layer: [num_pages, rows, ...]; the rows are final.
            places: page, and row within it, int64 [rows] each.
            into: uint8 of as many bytes, on the host or on the device of the layer.
        """
        with self._stream.queue():
            data = layer[self._indices(layer, places)].contiguous().view(torch.uint8).flatten()
            if isinstance(into, np.ndarray):
                into[:] = self._stream.download(data).wait().numpy()
            else:
                into.copy_(data)
                self._stream.settle()

    def write(
        self, layer: Tensor, places: tuple[Ints, Ints], block: BlockBuffer, after: Fence
    ) -> None:
        """A block to rows of a layer, once the fence is passed; they are there on return."""
        with self._stream.queue():
            after.wait()
            source = self._there(layer, block) if isinstance(block, np.ndarray) else block
            rows = source.view(layer.dtype).view(-1, *layer.shape[2:])
            layer[self._indices(layer, places)] = rows
            self._stream.settle()

    def _indices(self, layer: Tensor, places: tuple[Ints, Ints]) -> tuple[Tensor, Tensor]:
        both = np.stack(places).view(np.uint8).reshape(-1)
        pages, rows = self._there(layer, both).view(torch.int64).view(2, -1)
        return pages, rows

    def _there(self, layer: Tensor, data: Bytes) -> Tensor:
        """Bytes on the device of a layer, by pinned memory."""
        pinned = self._stream.pinned(len(data))
        pinned.numpy()[:] = data
        there = layer.new_empty(len(data), dtype=torch.uint8)
        self._stream.upload(pinned, there)
        return there
