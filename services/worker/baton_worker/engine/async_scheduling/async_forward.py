"""Forward pass whose decode rows begin with tokens that are on the device only."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.attention.staged_buffers import StagedBuffers
from baton_worker.engine.batch.sequence_states import UNKNOWN
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.forward.causal_forward import CausalForward, CausalModel
from baton_worker.kv_cache import KVCache
from baton_worker.platform.device_link import DeviceLink


class AsyncForward(CausalForward):
    """See `ForwardPass`. One copy takes the indices of a step to the device.

    Args:
        link: copies to the device.
        max_num_seqs: slots.
    """

    def __init__(
        self,
        model: CausalModel,
        cache: KVCache,
        device: torch.device,
        link: DeviceLink,
        max_num_seqs: int,
    ) -> None:
        self.staged, self.link = StagedBuffers(device, link), link
        super().__init__(model, cache, device, buffers=self.staged)
        self._sampled = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        """By slot: the token that it sampled last."""
        self._sources: Tensor | None = None
        self._all_sampled = False

    def keep(self, slots: Tensor, tokens: Tensor) -> None:
        """Keep what these slots have sampled, int64 [R] each, for their next step."""
        self._sampled.index_copy_(0, slots, tokens)

    def _indices(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        unknown, self._sources = inputs.tokens == UNKNOWN, None
        if unknown.any():
            row, _ = inputs.rows.flat()
            self._sources = self.staged.put("sources", inputs.rows.slots[row])
            self._all_sampled = bool(unknown.all())
        return super()._indices(inputs)

    def _known(self, tokens: Tensor) -> Tensor:
        if self._sources is None:
            return tokens
        sampled = self._sampled.index_select(0, self._sources)
        return sampled if self._all_sampled else torch.where(tokens == UNKNOWN, sampled, tokens)
