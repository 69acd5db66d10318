"""Runs a drafter over its own pages."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton.logs import logger
from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.drafters.draft_kv import DraftKV
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.graphs import GraphedModel, Sizes
from baton_worker.graphs.startup import graphed_model, why_uncaptured
from baton_worker.kv_cache import KVCache
from baton_worker.models.decoder import Model
from baton_worker.models.transformers_backend import TransformersModel
from baton_worker.speculative.proposer import Column, ProposerContext

log = logger(__name__)


class DraftForward:
    """A drafter and its pages.

    Args:
        weights: the drafter.
        context: sizes of the engine. Steps of the drafter are captured if those of the target are.
    """

    def __init__(self, weights: DraftModelWeights, context: ProposerContext) -> None:
        loaded, build = weights.loaded, weights.build
        assert isinstance(loaded.model, Model | TransformersModel)
        self._device, self._axes = build.device, loaded.spec.position_axes
        self._vocab, self._buffers = loaded.vocab_size, Buffers(build.device)
        self._cache = KVCache(
            loaded.spec,
            context.num_pages,
            context.page_size,
            dtype=build.dtype,
            device=build.device,
            codes=build.codes,
            layout=build.layout,
            spare=int(context.graphs is not None),
        )
        longest = min(context.max_model_len, loaded.max_length)
        self.kv = DraftKV(self._cache, context.max_num_seqs, longest)
        self._model = _replayed(loaded.model, self._cache, context.graphs, build.device)

    def __call__(self, slots: Column, counts: Column, tokens: Column) -> Tensor:
        """Run the next tokens of some slots, whose pages are reserved.

        Args:
            slots: int64 [B], each once.
            counts: int64 [B], tokens of each, at least 1.
            tokens: int64 [T], row after row.

        Returns:
            Hidden states [T, hidden].
        """
        starts = self.kv.computed[slots]
        batch = AttentionBatch.build_all(
            counts,
            starts,
            self.kv.tables,
            self.kv.page_size,
            self._device,
            slots=slots,
            buffers=self._buffers,
        )
        self.kv.advance(slots, counts, tokens)
        # Ids that only the target has, such as those of padding, are drafted behind as any other.
        clamped = torch.from_numpy(np.minimum(tokens, self._vocab - 1)).to(self._device)
        return self._model.forward(clamped, self._positions(starts, counts), batch, self._cache)

    def logits(self, hidden: Tensor, rows: Column | None = None) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden], or of those at `rows` [R]."""
        if rows is not None and len(rows) != len(hidden):
            hidden = hidden.index_select(0, torch.from_numpy(rows).to(self._device))
        return self._model.logits(hidden)

    def _positions(self, starts: Column, counts: Column) -> Tensor:
        """int64 [T], or [axes, T] for a model whose tokens have several: those of text."""
        row = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(row)) - (np.cumsum(counts) - counts - starts)[row]
        if self._axes > 1:
            positions = np.tile(positions, (self._axes, 1))
        return torch.from_numpy(positions).to(self._device)


def _replayed(
    model: Model | TransformersModel, cache: KVCache, graphs: Sizes | None, device: torch.device
) -> Model | TransformersModel | GraphedModel:
    """The model with its steps captured, if those of the target are and it can be."""
    if graphs is None or not isinstance(model, Model) or model.capture_blocker is not None:
        return model
    graphed = graphed_model(model, cache, graphs, device)
    return model if why_uncaptured(graphed) else graphed
