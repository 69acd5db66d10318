"""Bitmasks of allowed tokens, applied to the logits of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

_ROWS = 64
"""Rows that are expanded at one time: a mask takes as much memory as its logits."""


def _table() -> Tensor:
    """Addends of eight logits by the byte of their bits: 0 where a bit is set, else -inf. float32
    [256, 8]."""
    bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
    return torch.where(bits > 0, 0.0, -torch.inf)


_TABLE = _table()


@dataclass(frozen=True, slots=True)
class Mask:
    """Allowed tokens of the rows of a batch that have a grammar."""

    rows: npt.NDArray[np.int64]
    """[N]: which rows of the batch."""
    bits: npt.NDArray[np.uint8]
    """[N, at least V / 8]: one bit per token that is allowed, the least significant first."""

    def apply(self, logits: Tensor) -> None:
        """Set forbidden logits to -inf, in place in float32 [R, V] without +inf."""
        # Bits travel to the device, an eighth of a byte per token, and an addition is several
        # times as fast as a masked fill.
        table = _TABLE.to(logits.device)
        for first in range(0, len(self.rows), _ROWS):
            part = slice(first, first + _ROWS)
            rows = torch.from_numpy(self.rows[part]).to(logits.device)
            bits = torch.from_numpy(self.bits[part]).to(logits.device).int()
            added = embedding(bits, table).flatten(1)[:, : logits.shape[1]]
            logits.index_add_(0, rows, added)
