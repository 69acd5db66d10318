"""Forward pass of the last stage of a pipeline: a step begins in the first one, and runs here
later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from baton_worker.attention.buffers import Buffers
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.executor.leader import LedModel
from baton_worker.kv_cache import KVCache


class StagedForward(CausalForward):
    """See `ForwardPass`. Each step in flight has buffers of its own.

    Args:
        num_stages: most steps that are launched and have not run here, but for one.
    """

    def __init__(
        self, model: LedModel, cache: KVCache, device: torch.device, num_stages: int
    ) -> None:
        super().__init__(model, cache, device)
        self._led = model
        self._free = deque(Buffers(device) for _ in range(num_stages + 1))

    def launch(self, inputs: StepInputs) -> Callable[[], Tensor]:
        """Begin a step of at least one row; the returned function gives its hidden states [T,
        hidden], in the order of launches."""
        self.buffers = self._free[0]
        self._free.rotate(-1)
        (tokens, positions), attention = self._indices(inputs), self._attention(inputs)
        return self._led.launch(tokens, positions, attention, self._cache, inputs.embeddings)

    @property
    def arrived(self) -> bool:
        """Whether the states of the step that was launched first are here."""
        return self._led.arrived
