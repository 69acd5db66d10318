"""Ranks with sequences of their own that share the experts: all take each step, or none does.

    rank 0   agree 7 tokens   forward ......   agree 1 token   forward ...
    rank 1   agree 0 tokens   experts only     agree 1 token   forward ...

A rank that has nothing to run lends its experts to the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.all2all.gather_scatter import AllToAll
from baton_worker.distributed.communicator import Communicator


class StepSync:
    """What the ranks have agreed on, before each forward pass and in between.

    Args:
        ranks: who takes part.
        exchange: how tokens pass between them, a row of `ALL2ALL`.
        device: where they compute.

    Raises:
        SettingsError: this exchange cannot be used here.
    """

    def __init__(self, ranks: Communicator, exchange: str, device: torch.device) -> None:
        self.ranks, self._device = ranks, device
        self._exchange: AllToAll = ALL2ALL.load(exchange)(ranks)
        self._counts = [0] * ranks.size
        self.all_over = False
        """Whether every rank has said, when they last agreed, that it is to end."""

    def agree(self, num_tokens: int, over: bool = False) -> bool:
        """Say how many tokens this rank runs next, or that it is to end; learn what the others
        say. Waits for all of them. Returns whether there is a step, which then all take."""
        mine = torch.tensor([num_tokens, over], dtype=torch.int64, device=self._device)
        told = torch.stack(self.ranks.all_gather(mine)).T.tolist()
        self._counts, self.all_over = told[0], all(told[1])
        return any(self._counts)

    def begin_gather(self, rows: Tensor) -> Callable[[], Tensor]:
        """Rows of this step's own tokens [T, n] to those of all ranks; see `AllToAll`."""
        return self._exchange.begin_gather(rows, self._counts)

    def scatter(self, summands: Tensor) -> Tensor:
        """The summands of all ranks' tokens to the sums of the own ones; see `AllToAll`."""
        return self._exchange.scatter(summands, self._counts)
