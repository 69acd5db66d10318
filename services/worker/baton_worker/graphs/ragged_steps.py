"""Replay of steps of any shape, up to their hidden states, and of the logits of small ones."""

from __future__ import annotations

from functools import partial
from operator import add

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.graphs.capture import Recorder, Recording
from baton_worker.graphs.inputs import RaggedInputs
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache
from baton_worker.models.block_stack import Plans
from baton_worker.models.decoder import Model

_MOST_LOGITS = 16
"""Most tokens of a step whose logits are replayed. Operators of torch compute as many in each
replay, whatever its number of tokens."""


class RaggedSteps:
    """Prefill chunks and decode rows in one step, captured once at maximum size. Logits are not
    part of it, since the rows that need them change from step to step. Those of all tokens of a
    small step, which a step with drafts needs, are a capture of their own.

    Args:
        model: it has no `capture_blocker`, and its plans do not depend on the shape of a
        step. cache: cache of every step, with a spare page. most: tokens and rows to capture, at
        least one token per row. length: maximum tokens of a row, new ones included.
        recorder: replays part of a capture: the given tokens and rows. device: device of the model.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        most: Extent,
        length: int,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        self._model, self._cache, self._most, self._length = model, cache, most, length
        self._inputs, self._hidden = RaggedInputs(cache, most, length, device), torch.empty(0)
        batch = self._inputs.batch(most)
        plans = model.plan(batch, cache.groups)
        self._recording: Recording = recorder.capture(partial(self._run, batch, plans), most)
        self._num_logits, self._logits = min(_MOST_LOGITS, most.rows), torch.empty(0)
        self._head: Recording = recorder.capture(self._run_head, Extent.decode(self._num_logits))
        self._replayed: Tensor | None = None
        """Hidden states that were handed out and whose logits `_head` computes."""

    def _run(self, batch: AttentionBatch, plans: Plans) -> tuple[Tensor]:
        """Captured function."""
        self._hidden = self._answer(batch, plans)
        return (self._hidden,)

    def _run_head(self) -> tuple[Tensor]:
        """Captured function."""
        self._logits = self._model.logits(self._hidden[: self._num_logits])
        return (self._logits,)

    def _answer(self, batch: AttentionBatch, plans: Plans) -> Tensor:
        inputs, count = self._inputs, sum(batch.query_lens)
        return self._model.run(
            inputs.tokens[:count], inputs.positions[:count], batch, self._cache, plans
        )

    def holds(self) -> bool:
        """True if a replay equals an eager step bit for bit, on a step that the capture has not
        seen."""
        extent = self._inputs.try_out(self._most)
        batch = self._inputs.batch(extent)
        self._hidden.fill_(torch.nan)
        # The replay runs first, so that it finds no KV written by the model.
        self._recording.replay(extent)
        expected = self._answer(batch, self._model.plan(batch, self._cache.groups))
        return torch.equal(self._hidden[: extent.tokens], expected) and self._head_holds(expected)

    def _head_holds(self, hidden: Tensor) -> bool:
        count = min(len(hidden), self._num_logits)
        self._logits[:count].fill_(torch.nan)
        self._head.replay(Extent.decode(count))
        return torch.equal(self._logits[:count], self._model.logits(hidden[:count]))

    def fits(self, batch: AttentionBatch) -> bool:
        """True if the capture covers this step."""
        return (
            len(batch.slot_mapping) <= self._most.tokens
            and len(batch.query_lens) <= self._most.rows
            and max(map(add, batch.num_computed, batch.query_lens)) <= self._length
            and batch.ranges is None
            and batch.trees is None
            and batch.last_keys is None
        )

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """Hidden states [T, hidden] of a step that `fits`."""
        self._cache.begin(batch)
        self._inputs.write(tokens, positions, batch)
        self._recording.replay(Extent(len(tokens), len(batch.query_lens)))
        # A copy, since the next replay overwrites the original.
        self._replayed = self._hidden[: len(tokens)].clone()
        return self._replayed

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Logits of all hidden states of the last step, which the next call overwrites; None if the
        capture does not cover them or they have been asked for."""
        is_replayed, self._replayed = hidden is self._replayed, None
        if not is_replayed or len(hidden) > self._num_logits:
            return None
        self._head.replay(Extent.decode(len(hidden)))
        return self._logits[: len(hidden)]
