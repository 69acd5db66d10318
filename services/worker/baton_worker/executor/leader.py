"""The leader's model and pages: every operation is repeated on all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.distributed.communicator import Communicator
from baton_worker.executor.commands import (
    Clear,
    Copy,
    Forward,
    Load,
    Logits,
    Pipe,
    Store,
)
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model


class LedModel:
    """A model whose forward passes run on all ranks."""

    def __init__(self, model: Model, orders: Pipe, ranks: Communicator) -> None:
        self._model, self._orders, self._ranks = model, orders, ranks
        self.dtype = model.dtype

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """See `models.decoder.Model.forward`."""
        adapters = self._adapters()
        self._orders.send(Forward(tokens, positions, batch, bool(texts), media, adapters))
        return self._model.forward(tokens, positions, batch, cache, texts, media)

    __call__ = forward

    def _adapters(self) -> Tensor | None:
        """The adapters of the rows that run now."""
        adapters = self._model.adapters
        return None if adapters is None else torch.from_numpy(adapters.host)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `models.decoder.Model.logits`."""
        hidden = hidden.contiguous()
        self._orders.send(Logits((hidden.shape[0], hidden.shape[1]), self._adapters()))
        self._ranks.broadcast(hidden, 0)
        return self._model.logits(hidden)


class LedCache(KVCache):
    """The leader's shard of the pages; copies are repeated on all ranks."""

    def __init__(self, *args: Any, orders: Pipe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._orders = orders

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """See `KVCache.copy`."""
        self._orders.send(Copy(sources, targets))
        super().copy(sources, targets)

    def clear(self, page: int, first: int = 0, group: int = 0) -> None:
        """See `KVCache.clear`."""
        self._orders.send(Clear(page, first, group))
        super().clear(page, first, group)


class LedHostPages(HostPages):
    """The leader's shard of the pages in host memory."""

    def __init__(self, cache: KVCache, num_pages: int, orders: Pipe) -> None:
        super().__init__(cache, num_pages)
        self._orders = orders

    def store(self, pages: list[int], host: list[int]) -> None:
        """See `HostPages.store`."""
        self._orders.send(Store(pages, host))
        super().store(pages, host)

    def load(self, host: list[int], pages: list[int]) -> None:
        """See `HostPages.load`."""
        self._orders.send(Load(host, pages))
        super().load(host, pages)
