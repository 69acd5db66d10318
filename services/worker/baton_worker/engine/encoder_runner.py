"""Steps in which texts are run whole: of an encoder, of two side by side, and of a decoder that
embeds so."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.engine.input_batch import BatchRows, InputBatch, PlanError
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.engine.pooling_step import PoolingStep
from baton_worker.executor.leader import LedModel
from baton_worker.graphs import GraphedModel
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.models.decoder import Model
from baton_worker.models.dual_encoder import DualEncoderModel
from baton_worker.models.encoder import EncoderModel


class EncoderRunner(ModelRunner):
    """Runs whole texts; pages are numbers without memory behind them."""

    def __init__(
        self,
        model: EncoderModel,
        cache: KVCache,
        batch: InputBatch,
        device: torch.device,
        pools: PoolingStep,
    ) -> None:
        super().__init__(_Unpaged(), cache, batch, device, pools)
        self._encoder = model

    def _forward(self, rows: BatchRows) -> Tensor:
        """Final hidden states [T, hidden] of texts that all run from begin to end."""
        batch, device = self.batch, self._device
        _check_whole(batch, rows)
        row, positions = rows.flat()
        tokens = batch.tokens[rows.slots[row], positions].astype(np.int64)
        seconds = np.array([self._second(slot) for slot in rows.slots.tolist()], np.int64)
        types = (positions >= seconds[row]).astype(np.int64)
        return self._encoder.encode(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(positions).to(device),
            rows.counts.tolist(),
            torch.from_numpy(types).to(device),
        )

    def _second(self, slot: int) -> int:
        """Where the second text of a pair begins; behind the end of a text that is alone."""
        pooling = self.batch.pooling.get(slot)
        return pooling.second if pooling and pooling.second else int(self.batch.lengths[slot])


class DualEncoderRunner(EncoderRunner):
    """Runs texts and images, each kind in its own tower."""

    def __init__(
        self,
        model: DualEncoderModel,
        cache: KVCache,
        batch: InputBatch,
        device: torch.device,
        pools: PoolingStep,
    ) -> None:
        super().__init__(model, cache, batch, device, pools)
        self._towers = model

    def _forward(self, rows: BatchRows) -> Tensor:
        """One vector per row, [R, width]."""
        _check_whole(self.batch, rows)
        seen = np.array([slot in self.batch.images for slot in rows.slots.tolist()])
        parts = []
        if not seen.all():
            parts.append(self._towers.embed_texts(self._texts(rows.take(~seen))))
        if seen.any():
            parts.append(self._towers.embed_images(self._images(rows.take(seen))))
        order = np.argsort(np.concatenate((np.flatnonzero(~seen), np.flatnonzero(seen))))
        return torch.cat(parts).index_select(0, self._tensor(order))

    def _texts(self, rows: BatchRows) -> list[Tensor]:
        """The tokens of each text, int64."""
        ends = zip(rows.slots.tolist(), rows.counts.tolist(), strict=True)
        return [self._tensor(self.batch.tokens[s, :n].astype(np.int64)) for s, n in ends]

    def _images(self, rows: BatchRows) -> Tensor:
        """float32 [R, 3, height, width]."""
        pixels = np.stack([self.batch.images[slot] for slot in rows.slots.tolist()])
        return torch.from_numpy(pixels).to(self._device)


def _check_whole(batch: InputBatch, rows: BatchRows) -> None:
    if rows.starts.any() or (rows.counts != batch.lengths[rows.slots]).any():
        raise PlanError("A plan runs a part of a text, but every token of it sees all others.")


class EmbedAndGenerateRunner(ModelRunner):
    """Runs a decoder that embeds whole texts, in which all tokens see all, and may generate too."""

    def __init__(
        self,
        model: Model | LedModel | GraphedModel,
        cache: KVCache,
        batch: InputBatch,
        device: torch.device,
        pools: PoolingStep,
    ) -> None:
        super().__init__(model, cache, batch, device, pools)
        self._both_ways = _BothWays(model)

    def _forward(self, rows: BatchRows) -> Tensor:
        """Hidden states [T, hidden]: first of what looks back, then of whole texts."""
        whole = np.array([slot in self.batch.pooling for slot in rows.slots.tolist()])
        if not whole.any():
            return super()._forward(rows)
        if whole.all():
            return self._through(self._both_ways, rows)
        tokens = np.repeat(whole, rows.counts)
        parts = (
            super()._forward(rows.take(~whole)),
            self._through(self._both_ways, rows.take(whole)),
        )
        hidden = parts[0].new_empty(len(tokens), parts[0].shape[1])
        for part, here in zip(parts, (~tokens, tokens), strict=True):
            hidden[torch.from_numpy(here).to(self._device)] = part
        return hidden


class _BothWays:
    """A decoder whose tokens see the whole of their row."""

    def __init__(self, model: Model | LedModel | GraphedModel) -> None:
        self._model = model

    def forward(
        self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        texts = by_length(batch.query_lens, tokens.device)
        return self._model.forward(tokens, positions, batch, cache, texts)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)


class _Unpaged:
    """An encoder has no paged step and no logits: a plan that samples has come to the wrong one."""

    def forward(self, *_: object) -> Tensor:
        raise PlanError("A plan needs a cache, and an encoder has none.")

    def logits(self, hidden: Tensor) -> Tensor:
        raise PlanError("A plan samples a token, and an encoder makes none.")
