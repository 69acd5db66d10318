"""Steps of a decoder that embeds whole texts, in which all tokens see all, and may generate too."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.executor.leader import LedModel
from baton_worker.graphs import GraphedModel
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.models.decoder import Model


class BidirectionalForward(CausalForward):
    """See `ForwardPass`."""

    def __init__(
        self,
        model: Model | LedModel | GraphedModel,
        cache: KVCache,
        device: torch.device,
        adapters: TokenAdapters | None = None,
    ) -> None:
        assert adapters is None, "adapters are of models that generate, see lora.store"
        super().__init__(model, cache, device)
        self._both_ways = model

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Hidden states [T, hidden]: first of what looks back, then of whole texts."""
        whole = np.array([slot in inputs.pooling for slot in inputs.rows.slots.tolist()])
        if not whole.any():
            return super().__call__(inputs)
        if whole.all():
            return self._whole(inputs)
        tokens = np.repeat(whole, inputs.rows.counts)
        parts = super().__call__(inputs.take(~whole)), self._whole(inputs.take(whole))
        hidden = parts[0].new_empty(len(tokens), parts[0].shape[1])
        for part, here in zip(parts, (~tokens, tokens), strict=True):
            hidden[torch.from_numpy(here).to(self.device)] = part
        return hidden

    def _whole(self, inputs: StepInputs) -> Tensor:
        """Hidden states of texts whose tokens see the whole of their row."""
        indices, attention = self._indices(inputs), self._attention(inputs)
        self.buffers.flush()
        texts = by_length(attention.query_lens, self.device)
        return self._both_ways.forward(*indices, attention, self._cache, texts, inputs.embeddings)
