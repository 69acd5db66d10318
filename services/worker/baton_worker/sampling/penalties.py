"""Logits adjustments before sampling: bias, forbidden tokens, penalties.

Stateless: penalties are computed from the tokens, so a migrated sequence is penalised identically.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.sampling.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Entries:
    """Sparse additions to the logits of a batch."""

    rows: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    def add(self, logits: Tensor) -> None:
        """Add each value to its logit, in place; -inf forbids the token."""
        where = torch.from_numpy(self.rows), torch.from_numpy(self.ids)
        values = torch.from_numpy(self.values).to(logits.device)
        logits.index_put_(tuple(i.to(logits.device) for i in where), values, accumulate=True)


@dataclass(frozen=True, slots=True)
class History:
    """Tokens of the P penalised rows of a batch of R."""

    rows: npt.NDArray[np.int64]
    """[P]: row indices in the batch."""
    tokens: npt.NDArray[np.int64]
    """[P, L]: prompt and log of each row, padded with its own first token."""
    sampled: npt.NDArray[np.float32]
    """[P, L]: 1 where the token belongs to the log, 0 for the prompt and the padding."""
    parameters: Parameters
    """[P]"""

    def penalise(self, logits: Tensor) -> None:
        """Apply the three penalties to `logits` float32 [R, V], in place.

        Repetition (Keskar et al. 2019, arXiv:1909.05858) covers prompt and log: positive logits are
        divided by it, negative ones multiplied. Presence and frequency, as defined by OpenAI, cover
        the log only: one is subtracted once, the other per occurrence.
        """
        device = logits.device
        rows = torch.from_numpy(self.rows).to(device)
        ids = torch.from_numpy(self.tokens).to(device)
        repetition, presence, frequency = (
            torch.from_numpy(self.parameters[name].astype(np.float32)).to(device)[:, None]
            for name in ("repetition", "presence", "frequency")
        )
        chosen = logits.index_select(0, rows)
        occurrences = torch.zeros_like(chosen)
        occurrences.scatter_add_(1, ids, torch.from_numpy(self.sampled).to(device))
        count, x = occurrences.gather(1, ids), chosen.gather(1, ids)
        x = torch.where(x > 0, x / repetition, x * repetition)
        x = x - frequency * count - presence * (count > 0)
        # Duplicate tokens are written repeatedly with the same value.
        logits.index_copy_(0, rows, chosen.scatter_(1, ids, x))
