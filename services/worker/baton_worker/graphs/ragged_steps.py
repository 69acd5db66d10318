"""Steps of any shape that are replayed, up to their hidden states."""

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
from baton_worker.models.decoder import Model, Plans


class RaggedSteps:
    """Prompts, chunks of them, and rows that decode beside them: captured once, at their largest.

    Logits are no part of it: which rows need some changes from step to step.

    Args:
        model: it has no `capture_blocker`, and its plans do not depend on the shape of a
        step. cache: that of every step, with a spare page. most: tokens and rows that are captured,
        at least one token of each row. length: most tokens of a row, the new ones included.
        recorder: whose replays run as much as they are told, and not all of it. device: of the
        model.
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

    def _run(self, batch: AttentionBatch, plans: Plans) -> tuple[Tensor]:
        """Captured."""
        self._hidden = self._answer(batch, plans)
        return (self._hidden,)

    def _answer(self, batch: AttentionBatch, plans: Plans) -> Tensor:
        inputs, count = self._inputs, sum(batch.query_lens)
        return self._model.run(
            inputs.tokens[:count], inputs.positions[:count], batch, self._cache, plans
        )

    def holds(self) -> bool:
        """Whether a replay has the bits of the model, on a step that the capture has not seen."""
        extent = self._inputs.try_out(self._most)
        batch = self._inputs.batch(extent)
        self._hidden.fill_(torch.nan)
        # First, so that it finds no keys that the model has left.
        self._recording.replay(extent)
        wanted = self._answer(batch, self._model.plan(batch, self._cache.groups))
        return torch.equal(self._hidden[: extent.tokens], wanted)

    def fits(self, batch: AttentionBatch) -> bool:
        """Whether a step is one that was captured."""
        return (
            len(batch.slot_mapping) <= self._most.tokens
            and len(batch.query_lens) <= self._most.rows
            and max(map(add, batch.num_computed, batch.query_lens)) <= self._length
            and batch.ranges is None
            and batch.trees is None
        )

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor:
        """Hidden states [T, hidden] of a step that `fits`."""
        self._cache.begin(batch)
        self._inputs.write(tokens, positions, batch)
        self._recording.replay(Extent(len(tokens), len(batch.query_lens)))
        # A copy: whoever keeps it for longer than a step finds what was there.
        return self._hidden[: len(tokens)].clone()
