"""Step synchronization for expert parallelism: all ranks run each step, or none does.

    rank 0   agree 7 tokens   forward ......   agree 1 token   forward ...
    rank 1   agree 0 tokens   experts only     agree 1 token   forward ...

A rank without tokens runs its experts for the other ranks (vLLM: dummy batch).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.all2all.gather_scatter import AllToAll
from baton_worker.distributed.communicator import Communicator


class StepSync:
    """State agreed among ranks before each forward pass.

    Args:
        ranks: the communicator.
        exchange: the all-to-all, an entry of `ALL2ALL`.
        device: where the ranks compute.

    Raises:
        SettingsError: this all-to-all cannot be used here.
    """

    def __init__(self, ranks: Communicator, exchange: str, device: torch.device) -> None:
        self.ranks, self._device = ranks, device
        self._exchange: AllToAll = ALL2ALL.load(exchange)(ranks)
        self._counts = [0] * ranks.size
        self.all_over = False
        """Whether every rank asked to end at the last agreement."""

    def agree(self, num_tokens: int, over: bool = False) -> bool:
        """Exchange the token counts of the next step, and whether each rank is to end. Waits for
        all ranks. Returns whether there is a step, which all ranks then run."""
        mine = torch.tensor([num_tokens, over], dtype=torch.int64, device=self._device)
        told = torch.stack(self.ranks.all_gather(mine)).T.tolist()
        self._counts, self.all_over = told[0], all(told[1])
        return any(self._counts)

    def begin_gather(self, rows: Tensor) -> Callable[[], Tensor]:
        """Gather this step's local tokens [T, n] to all ranks; see `AllToAll`."""
        return self._exchange.begin_gather(rows, self._counts)

    def scatter(self, summands: Tensor) -> Tensor:
        """Reduce-scatter the partial results to the local tokens; see `AllToAll`."""
        return self._exchange.scatter(summands, self._counts)
