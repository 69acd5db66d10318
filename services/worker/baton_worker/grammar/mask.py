"""Which tokens constrained rows may sample, applied to the logits of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens the rows of a batch that follow a grammar may sample."""

    rows: npt.NDArray[np.int64]
    """[N]: which rows of the batch."""
    allowed: npt.NDArray[np.bool_]
    """[N, V]"""

    def apply(self, logits: Tensor) -> None:
        """Forbid everything else, in place in float32 [R, V]."""
        rows = torch.from_numpy(self.rows).to(logits.device)
        forbidden = torch.from_numpy(~self.allowed).to(logits.device)
        part = logits.index_select(0, rows).masked_fill_(forbidden, -torch.inf)
        logits.index_copy_(0, rows, part)
