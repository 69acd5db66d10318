"""Forward pass of a causal decoder over paged KV."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.attention.tree_mask import TreeMask
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.media_embeddings import MediaEmbeddings


class CausalModel(Protocol):
    """Interface of `baton_worker.models.Model`, also of its replayed and multi-rank forms."""

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """One ragged step: int64 [T], and [T] or [axes, T], to hidden states [T, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] to float32 [R, vocab]."""


class CausalForward:
    """See `ForwardPass`."""

    def __init__(
        self,
        model: CausalModel,
        cache: KVCache,
        device: torch.device,
        adapters: TokenAdapters | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """`adapters` is the adapter state that the layers read, if adapters are served. `buffers`
        take every step's indices to the device; None: one copy for each of them."""
        self.model, self._cache, self.device = model, cache, device
        self._adapters, self._of_tokens = adapters, np.zeros(0, np.int64)
        self.buffers = Buffers(device) if buffers is None else buffers
        """Buffers of every step's indices."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Hidden states [T, hidden] of all new tokens."""
        if self._adapters is not None and inputs.adapters is not None:
            self._of_tokens = inputs.adapters
            self._adapters.write(inputs.adapters)
        (tokens, positions), attention = self._indices(inputs), self._attention(inputs)
        self.buffers.flush()
        return self.model.forward(
            self._known(tokens), positions, attention, self._cache, media=inputs.embeddings
        )

    def _known(self, tokens: Tensor) -> Tensor:
        """The tokens that a step runs."""
        return tokens

    def _indices(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Tokens and positions."""
        put = self.buffers.put
        return put("tokens", inputs.tokens), put("positions", inputs.positions)

    def _attention(self, inputs: StepInputs) -> AttentionBatch:
        """Attention batch of these rows, valid until the next one is built."""
        batch = AttentionBatch.build_all(
            inputs.rows.counts,
            inputs.rows.starts,
            inputs.tables.tables,
            inputs.tables.page_size,
            self.device,
            slots=inputs.rows.slots,
            buffers=self.buffers,
            last_keys=inputs.last_keys,
        )
        if not inputs.trees:
            return batch
        trees = [inputs.trees.get(slot) for slot in inputs.rows.slots.tolist()]
        parents = [None if tree is None else tree.tolist() for tree in trees]
        return batch.over(TreeMask.build(batch.query_lens, parents, self.device))

    def logits(self, hidden: Tensor, indices: Column | None = None) -> Tensor:
        """See `ForwardPass`."""
        # All rows: a replayed step has logits for these very states, not for a copy.
        if indices is not None and len(indices) != len(hidden):
            hidden = hidden.index_select(0, torch.from_numpy(indices).to(self.device))
        if self._adapters is not None:
            self._adapters.write(self._of_tokens if indices is None else self._of_tokens[indices])
        return self.model.logits(hidden)
