"""The leader's model and pages: every operation is repeated on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.distributed.communicator import Communicator
from baton_worker.executor.commands import (
    Clear,
    Copy,
    Forward,
    Load,
    Logits,
    Pipe,
    Step,
    Store,
    Zero,
)
from baton_worker.graphs import GraphedModel
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.decoder import Model


class LedModel:
    """A model whose forward passes run on all ranks."""

    def __init__(
        self,
        model: Model | GraphedModel,
        commands: Pipe,
        ranks: Communicator,
    ) -> None:
        """`ranks` have parts of the layers that are here; they are the first followers."""
        self._model, self._commands, self._ranks = model, commands, ranks
        self._beside = slice(0, ranks.size - 1)
        self.dtype = model.dtype
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        """Indices of the step that is run next, if the host has them."""

    def watch(self, buffers: Buffers, groups: int) -> None:
        """Steps whose indices are flushed from these buffers, for so many page groups, are sent to
        followers as the host has made them, and not read back from the device."""
        names = ("positions", *AttentionBatch.array_names(groups))

        def flushed(buffers: Buffers) -> None:
            self._arrays = {name: buffers.sent(name) for name in names}

        buffers.flushed = flushed

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
        arrays, self._arrays = self._arrays, {}
        masks = (batch.ranges, batch.trees, batch.last_keys, media)
        if arrays and not texts and all(mask is None for mask in masks):
            self._send_step(tokens, batch, arrays)
        else:
            adapters = self._adapters()
            self._commands.send(Forward(tokens, positions, batch, bool(texts), media, adapters))
        return self._model.forward(tokens, positions, batch, cache, texts, media)

    __call__ = forward

    def launch(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        media: MediaEmbeddings | None = None,
    ) -> Callable[[], Tensor]:
        """Begin a step in the stages before this one (there is at least one); the returned function
        runs it here. Steps run here in the order in which they were launched."""
        assert isinstance(self._model, Model) and self._model.link is not None
        command = Forward(tokens, positions, batch, False, media, self._adapters())
        self._commands.send(command, slice(self._beside.stop, None))
        self._model.link.expect(len(tokens))
        return partial(self._run_launched, command, cache)

    def _run_launched(self, command: Forward, cache: KVCache) -> Tensor:
        # Not before: other ranks of this stage take part in sums and logits in the same order.
        self._commands.send(command, self._beside)
        inputs = (command.tokens, command.positions, command.batch, cache)
        return self._model.forward(*inputs, media=command.media)

    @property
    def arrived(self) -> bool:
        """Whether the step that was launched first and has not run is here."""
        assert isinstance(self._model, Model) and self._model.link is not None
        return self._model.link.arrived

    def _send_step(
        self, tokens: Tensor, batch: AttentionBatch, arrays: dict[str, npt.NDArray[Any]]
    ) -> None:
        adapters = None if self._model.adapters is None else self._model.adapters.host
        rows = (batch.query_lens, batch.num_computed, batch.page_size, 1 + len(batch.others))
        self._commands.send(Step(*rows, arrays, adapters))
        # From device to device: the host may not know what was sampled last.
        self._ranks.broadcast(tokens, 0)

    def _adapters(self) -> Tensor | None:
        """The adapters of the rows that run now."""
        adapters = self._model.adapters
        return None if adapters is None else torch.from_numpy(adapters.host)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """See `models.decoder.Model.logits`. A replayed step has made them on all ranks."""
        if isinstance(self._model, GraphedModel) and self._model.has_logits(hidden):
            return self._model.logits(hidden)
        hidden = self._model.without_draft_inputs(hidden).contiguous()
        command = Logits((hidden.shape[0], hidden.shape[1]), self._adapters())
        self._commands.send(command, self._beside)
        self._ranks.broadcast(hidden, 0)
        return self._model.logits(hidden)


class LedCache(KVCache):
    """The leader's shard of the pages; copies are repeated on all ranks."""

    def __init__(self, *args: Any, commands: Pipe, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands = commands

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """See `KVCache.copy`."""
        self._commands.send(Copy(sources, targets))
        super().copy(sources, targets)

    def clear(self, page: int, first: int = 0, group: int = 0) -> None:
        """See `KVCache.clear`."""
        self._commands.send(Clear(page, first, group))
        super().clear(page, first, group)

    def zero(self) -> None:
        """See `KVCache.zero`."""
        self._commands.send(Zero())
        super().zero()


class LedHostPages(HostPages):
    """The leader's shard of the pages in host memory."""

    def __init__(self, cache: KVCache, num_pages: int, commands: Pipe) -> None:
        super().__init__(cache, num_pages)
        self._commands = commands

    def store(self, pages: list[int], host: list[int]) -> None:
        """See `HostPages.store`."""
        self._commands.send(Store(pages, host))
        super().store(pages, host)

    def load(self, host: list[int], pages: list[int]) -> None:
        """See `HostPages.load`."""
        self._commands.send(Load(host, pages))
        super().load(host, pages)
