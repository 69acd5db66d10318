"""The states that one stage of a pipeline sends to the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from baton_worker.layers.forward_context import ForwardContext


@dataclass(frozen=True, slots=True)
class StageStates:
    """Tensors of [T, ...] in the dtype of the model."""

    hidden: Tensor
    """[T, hidden], the residual stream."""
    skips: list[Tensor]
    """Inputs of earlier layers that later ones mix in, in the order of layers."""

    def groups(self, step: ForwardContext) -> list[list[Tensor]]:
        """All of them, with what the layers of a step keep for one another."""
        return [[self.hidden], self.skips, step.shared_kv, step.pending, step.embedded]


class StageLink(Protocol):
    """Connects a stage with those before and behind it: see
    `distributed.pipeline_parallel.StageChannel`."""

    def send(self, states: StageStates, step: ForwardContext) -> None:
        """Hand the states of a step on."""

    def expect(self, num_tokens: int) -> None:
        """Begin to receive the states of a step that `receive` will wait for."""

    @property
    def arrived(self) -> bool:
        """Whether those of the step that was expected first are there."""

    def receive(self, num_tokens: int, step: ForwardContext) -> StageStates:
        """The states of a step of so many tokens. Fills what its layers keep for one another."""
