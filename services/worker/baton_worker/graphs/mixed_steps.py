"""Replay of steps that have prompt chunks beside decode rows, up to their hidden states."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from operator import add

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.graphs.capture import Recorder, Recording
from baton_worker.graphs.inputs import MixedInputs
from baton_worker.graphs.policy import Sizes
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache
from baton_worker.models.decoder import Model


class MixedSteps:
    """Steps of any shape, captured by their number of tokens: kernels find on the device which row
    a token belongs to. Logits are computed outside, since the rows that need them change from step
    to step.

    Args:
        model: it has no `capture_blocker` and no `launch_blocker`.
        cache: cache of every step, with a spare page.
        sizes: numbers of tokens to capture (`mixed`), most rows and most tokens of a row.
        recorder: captures and replays.
        device: device of the model.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        sizes: Sizes,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        self._model, self._cache, self._sizes = model, cache, sizes
        limits = (sizes.mixed[-1], sizes.rows[-1], sizes.length)
        self._inputs, self._hidden = MixedInputs(cache, *limits, device), torch.empty(0)
        self._recordings: dict[int, Recording] = {}
        for size in reversed(sizes.mixed):
            batch = self._inputs.of(size)
            self._inputs.pad(size)
            if not self._recordings:
                self._hidden = torch.empty_like(self._answer(batch))
            extent = Extent(size, len(batch.query_lens))
            self._recordings[size] = recorder.capture(partial(self._run, batch), extent)

    def _run(self, batch: AttentionBatch) -> tuple[Tensor, ...]:
        """Captured function; all sizes write the same output."""
        hidden = self._answer(batch)
        self._hidden[: len(hidden)].copy_(hidden)
        return ()

    def _answer(self, batch: AttentionBatch) -> Tensor:
        inputs, count = self._inputs, sum(batch.query_lens)
        # Planned within the capture: a plan finds on the device where rows begin.
        plans = self._model.plan(batch, self._cache.groups)
        return self._model.run(
            inputs.tokens[:count], inputs.positions[:count], batch, self._cache, plans
        )

    def fitting(self, batch: AttentionBatch) -> int | None:
        """The smallest captured number of tokens for a step; None if none fits."""
        special = (batch.ranges, batch.trees, batch.last_keys)
        longest = max(map(add, batch.num_computed, batch.query_lens))
        if longest > self._sizes.length or any(mask is not None for mask in special):
            return None
        rows = len(batch.query_lens)
        tokens = max(len(batch.slot_mapping), rows + 2)
        at = bisect_left(self._sizes.mixed, tokens)
        fits = at < len(self._sizes.mixed) and rows <= self._sizes.rows[-1]
        return self._sizes.mixed[at] if fits else None

    def forward(
        self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, size: int
    ) -> Tensor:
        """Hidden states [T, hidden] of a step, replayed at a size that is `fitting`."""
        self._cache.begin(batch)
        self._inputs.fill(tokens, positions, batch, size)
        self._recordings[size].replay(Extent(size, self._inputs.rows(size) + 1))
        # A copy, since the next replay overwrites the original.
        return self._hidden[: len(tokens)].clone()
