"""Step synchronization for expert parallelism: all ranks run each step, or none does.

    rank 0   agree 7 tokens   forward ......   agree 1 token   forward ...
    rank 1   agree 0 tokens   experts only     agree 1 token   forward ...

A rank without tokens runs its experts for the other ranks (vLLM: dummy batch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.all2all.gather_scatter import AllToAll
from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.eplb.config import EplbConfig


class StepSync:
    """State agreed among ranks before each forward pass.

    Args:
        ranks: the communicator.
        exchange: the all-to-all, an entry of `ALL2ALL`.
        device: where the ranks compute.
        eplb: how the experts are balanced; None: they stay where they are.

    Raises:
        SettingsError: this all-to-all cannot be used here.
    """

    def __init__(
        self,
        ranks: Communicator,
        exchange: str,
        device: torch.device,
        eplb: EplbConfig | None = None,
    ) -> None:
        self.ranks, self._device, self.eplb = ranks, device, eplb
        self._exchange: AllToAll = ALL2ALL.load(exchange)(ranks)
        self.counts = [0] * ranks.size
        """Tokens of each rank in the step that was agreed last."""
        self.warm = False
        """Whether this rank has run its first steps, which are like no later ones."""
        self.before_step: Callable[[], None] | None = None
        """Called on all ranks before the same steps: each one from that on for which all of them
        are `warm`."""
        self.all_over = False
        """Whether every rank requested the end at the last agreement."""

    def agree(self, num_tokens: int, over: bool = False) -> bool:
        """Exchange the token counts of the next step, and whether each rank is to end. Waits for
        all ranks. Returns whether there is a step, which all ranks then run."""
        mine = torch.tensor([num_tokens, over, self.warm], dtype=torch.int64, device=self._device)
        self.counts, over_each, warm = torch.stack(self.ranks.all_gather(mine)).T.tolist()
        self.all_over, is_step = all(over_each), any(self.counts)
        if is_step and all(warm) and self.before_step is not None:
            self.before_step()
        return is_step

    def begin_gather(self, rows: Tensor) -> Callable[[], Tensor]:
        """Gather this step's local tokens [T, n] to all ranks; see `AllToAll`."""
        return self._exchange.begin_gather(rows, self.counts)

    def scatter(self, summands: Tensor) -> Tensor:
        """Reduce-scatter the partial results to the local tokens; see `AllToAll`."""
        return self._exchange.scatter(summands, self.counts)

    def deliver(self, rows: Tensor, counts: Sequence[Sequence[int]]) -> Tensor:
        """Send each rank its rows; see `AllToAll`."""
        return self._exchange.deliver(rows, counts)
