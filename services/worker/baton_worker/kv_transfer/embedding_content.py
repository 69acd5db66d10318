"""Embeddings of media, as the content of transfers: rows of one width, in one layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton.protocol import Grant, Pull
from baton_worker.kv_transfer.transport import BlockBuffer, Bytes
from baton_worker.kv_transfer.wire_format import BLOCK_BYTES, Extent, aligned

_MOST_ROWS = 1 << 20
"""Rows of one pull; no image has a hundredth of them."""


class EmbeddingContent:
    """Embeddings [n, width] by number of their transfer. See `content.Content`.

    Source: `offer` before the grant, `withdraw` with its end. Target: `take` after the pull.
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype
        self._row_bytes = width * dtype.itemsize
        self._offered: dict[int, Tensor] = {}
        self._pulled: dict[int, Tensor] = {}
        self.layout = f"embeddings:{self.dtype_name(0)}x{width}"
        self.place_bytes = aligned(max(BLOCK_BYTES, self._row_bytes))

    def offer(self, number: int, embeddings: Tensor) -> None:
        """Hold the embeddings [n, width] of a transfer until `withdraw`."""
        self._offered[number] = embeddings.detach().cpu().contiguous()

    def withdraw(self, number: int) -> None:
        """Release the embeddings of a transfer, if they were offered."""
        self._offered.pop(number, None)

    def take(self, number: int) -> Tensor | None:
        """The embeddings [n, width] of a pull that has ended, once; None if it was refused."""
        return self._pulled.pop(number, None)

    def clear(self) -> None:
        """Forget all transfers."""
        self._offered.clear()
        self._pulled.clear()

    def dtype_name(self, layer: int) -> str:
        """See `content.Content`."""
        return str(self._dtype).removeprefix("torch.")

    def block_bytes(self, extent: Extent) -> int:
        """See `content.Content`."""
        return (extent.end - extent.start) * self._row_bytes

    def reader(self, grant: Grant) -> EmbeddingRows:
        """The embeddings that were offered under the number of the grant."""
        embeddings = self._offered.get(grant.id)
        if embeddings is None or len(embeddings) != grant.length:
            raise ValueError(f"{grant.length} embeddings are not offered")
        return EmbeddingRows(embeddings)

    def writer(self, pull: Pull) -> EmbeddingRows:
        """Room for the embeddings of a pull."""
        if pull.start or not 0 < pull.end <= _MOST_ROWS:
            raise ValueError(f"{pull.end - pull.start} embeddings cannot be pulled")
        rows = torch.empty((pull.end, self._width), dtype=self._dtype)
        self._pulled[pull.id] = rows
        return EmbeddingRows(rows)


class EmbeddingRows:
    """Embeddings in host memory. See `content.Reader` and `content.Writer`."""

    def __init__(self, embeddings: Tensor) -> None:
        self._bytes: Bytes = embeddings.view(torch.uint8).numpy()
        """uint8 [n, bytes of a row]."""

    def covers(self, extent: Extent) -> bool:
        """See `content.Reader`."""
        if extent.layer or not 0 <= extent.start < extent.end <= len(self._bytes):
            return False
        rows = extent.end - extent.start
        return rows == 1 or rows * self._bytes.shape[1] <= BLOCK_BYTES

    def read(self, extent: Extent, into: BlockBuffer) -> None:
        """See `content.Reader`."""
        assert isinstance(into, np.ndarray), "embeddings pass through hosts"
        into[:] = self._bytes[extent.start : extent.end].reshape(-1)

    def extents(self) -> list[Extent]:
        """See `content.Writer`."""
        count, most = len(self._bytes), max(1, BLOCK_BYTES // self._bytes.shape[1])
        return [Extent(0, at, min(at + most, count)) for at in range(0, count, most)]

    def write(self, extent: Extent, block: BlockBuffer) -> None:
        """See `content.Writer`."""
        assert isinstance(block, np.ndarray), "embeddings pass through hosts"
        rows = self._bytes[extent.start : extent.end]
        rows[:] = block.reshape(rows.shape)
