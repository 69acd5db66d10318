"""Counts the loads of experts, and rearranges them between steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import torch
from torch import nn

from baton.errors import SettingsError
from baton.logs import logger
from baton.protocol import ExpertBalance
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.distributed.eplb.balanced_experts import BalancedExperts
from baton_worker.distributed.eplb.config import EplbConfig
from baton_worker.distributed.eplb.placement import Held, heaviest, rank_loads, rebalance
from baton_worker.distributed.eplb.rearrangement import Rearrangement
from baton_worker.distributed.step_sync import StepSync
from baton_worker.layers.moe.expert_load import ExpertLoad
from baton_worker.models.decoder import Model

_STEP_BYTES = 64 << 20
"""Weights that travel before one step, unless a single expert has more."""
_REPORT_STEPS = 100
"""Most steps between two reports of the balance."""

log = logger(__name__)


class ExpertBalancer:
    """Keeps the experts of a model balanced. All ranks of a group call `step` before the same
    steps; they have counted the same loads, so they do the same.

    Args:
        layers: the experts of all layers.
        ranks: the group.
        config: how often, and how many steps count.
        progressed: called after each part of a rearrangement: one that has no end in sight is no
            hang.

    Raises:
        SettingsError: the kernel of some experts cannot exchange them.
    """

    def __init__(
        self,
        layers: Sequence[BalancedExperts],
        ranks: Communicator,
        config: EplbConfig,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        self._progressed = progressed
        self._layers, self._ranks, self._config = layers, ranks, config
        _check(layers, ranks)
        self._load = ExpertLoad([layer.num_experts for layer in layers], config.window_size)
        self._steps = self._since = 0
        self._waiting = deque[tuple[BalancedExperts, list[int]]]()
        """Layers whose turn in the rearrangement under way has not come, and their loads."""
        self._moving: Rearrangement | None = None
        self._summary = _Rearranged()
        self._rearrangements = 0
        self._balance, self._reported = ExpertBalance(), ExpertBalance()

    def news(self) -> ExpertBalance | None:
        """The balance measured since the last call; None if it has not changed."""
        if self._balance == self._reported:
            return None
        self._reported = self._balance
        return self._reported

    @torch.inference_mode()
    def step(self) -> None:
        """Between two steps: take note of the one before, and move experts if it is time."""
        if not self._steps:
            self._begin()
        else:
            self._load.close_step()
            self._since += 1
            self._report()
        self._steps += 1
        if self._moving is None and not self._waiting and self._since >= self._config.step_interval:
            self._since = 0
            self._waiting.extend(zip(self._layers, self._loads(), strict=True))
        started = time.monotonic()
        while self._advance() and not self._config.use_async:
            self._progressed()
        self._summary.seconds += time.monotonic() - started

    def _begin(self) -> None:
        """Steps before the first one were for warming up: nothing was counted."""
        for number, layer in enumerate(self._layers):
            layer.watch = partial(self._load.record, number)

    def _advance(self) -> bool:
        """A part of the rearrangement under way; returns whether something is left of it. A layer
        is planned when its turn comes, since that takes time as well."""
        if self._moving is None:
            if not self._waiting:
                return False
            layer, loads = self._waiting.popleft()
            after = rebalance(loads, layer.held)
            self._summary.add(loads, layer.held, after)
            if after != layer.held:
                self._moving = Rearrangement(layer, after, self._ranks)
        if self._moving is not None and self._moving.advance(_STEP_BYTES):
            self._summary.experts += self._moving.num_moves
            self._summary.layers += 1
            self._moving = None
        if self._moving is None and not self._waiting:
            self._ended()
            return False
        return True

    def _ended(self) -> None:
        """All layers have had their turn."""
        if self._summary.layers:
            self._rearrangements += 1
            self._balance = self._measured()
            if self._ranks.rank == 0:
                log.info("%s", self._summary)
        self._summary = _Rearranged()

    def _report(self) -> None:
        config = self._config
        if self._steps % min(_REPORT_STEPS, config.step_interval) == 0:
            self._balance = self._measured()
        if config.log_balancedness and self._steps % config.log_balancedness_interval == 0:
            self._balance = balance = self._measured()
            if self._ranks.rank == 0:
                log.info(
                    "experts: balancedness %.4f, %.2f tokens on a rank and %.2f on the busiest of "
                    "a layer, steps until rearrangement: %d",
                    balance.balancedness,
                    balance.mean_tokens,
                    balance.max_tokens,
                    max(0, config.step_interval - self._since),
                )

    def _loads(self) -> Iterator[list[int]]:
        """Tokens of each expert within the window, layer after layer."""
        for number in range(len(self._layers)):
            yield self._load.counts(number).tolist()

    def _measured(self) -> ExpertBalance:
        """Tokens per rank, of an average rank and of the busiest one of each layer; vLLM calls
        their quotient balancedness."""
        mean = most = 0.0
        for layer, loads in zip(self._layers, self._loads(), strict=True):
            each = rank_loads(loads, layer.held)
            mean, most = mean + sum(each) / len(each), most + max(each)
        return ExpertBalance(mean / most if most else 1.0, mean, most, self._rearrangements)


@dataclass(slots=True)
class _Rearranged:
    """Counts of a rearrangement."""

    layers: int = 0
    experts: int = 0
    seconds: float = 0.0
    mean: float = 0.0
    """Tokens of an average rank, summed over layers."""
    before: float = 0.0
    """Of the busiest rank of each layer, as experts were placed."""
    after: float = 0.0
    """The same, as they are placed."""

    def add(self, loads: Sequence[int], before: Held, after: Held) -> None:
        """Take note of the placements of a layer."""
        self.mean += sum(loads) / len(before)
        self.before += heaviest(loads, before)
        self.after += heaviest(loads, after)

    def __str__(self) -> str:
        """A log line."""
        return (
            f"experts rearranged: {self.experts} moved in {self.layers} layers, which took "
            f"{self.seconds:.2f} s; balancedness {self.mean / self.after:.2f}, it was "
            f"{self.mean / self.before:.2f}"
        )


def balance(model: nn.Module, lockstep: StepSync) -> ExpertBalancer | None:
    """Balance the experts of a loaded model before steps, as the settings of its group say; None
    if they stay where they are.

    Raises:
        SettingsError: see `ExpertBalancer`.
    """
    if lockstep.eplb is None:
        return None
    assert isinstance(model, Model), "what has no experts is not dealt out"
    layers = [module for module in model.modules() if isinstance(module, BalancedExperts)]

    def progressed() -> None:
        model.progress += 1

    balancer = ExpertBalancer(layers, lockstep.ranks, lockstep.eplb, progressed)
    lockstep.before_step = balancer.step
    return balancer


def _check(layers: Sequence[BalancedExperts], ranks: Communicator) -> None:
    """Refuse experts that cannot be exchanged."""
    for layer in layers:
        if (why := layer.store.refuses()) is not None:
            raise SettingsError(
                f"--enable-eplb: the experts of this model cannot change their rank: {why}. Leave "
                "it out."
            )
    layout = "\n".join(layer.store.layout for layer in layers)
    if len({*numbers(ranks, crc32(layout.encode()), layers[0].device)}) > 1:
        raise SettingsError(
            "--enable-eplb: the experts of this model are not stored in the same way on all ranks. "
            "Leave it out."
        )
