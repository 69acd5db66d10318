"""A model whose steps are replayed from captures."""

from __future__ import annotations

from functools import partial
from operator import add

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.attention.backend import RefreshedPlan
from baton_worker.graphs.capture import Recorder, Recording, Uncaptured
from baton_worker.graphs.inputs import DecodeInputs
from baton_worker.graphs.mixed_steps import MixedSteps
from baton_worker.graphs.policy import Sizes
from baton_worker.graphs.ragged_steps import RaggedSteps
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.block_stack import Plans
from baton_worker.models.decoder import Model


class GraphedModel:
    """Replays steps in which every row has one new token, up to its logits; other steps up to their
    hidden states where `sizes` includes them, or eagerly. Before `capture` every step is eager.
    Sampling, with grammars and penalties, is not part of a graph.

    Args:
        model: it has no `capture_blocker`.
        cache: cache of every step, with a spare page.
        sizes: sizes to capture.
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
        self._model, self._cache, self._sizes, self.recorder = model, cache, sizes, recorder
        self.dtype, self.adapters = model.dtype, model.adapters
        self._device, self._inputs = (
            device,
            DecodeInputs(cache, sizes.rows[-1], sizes.length, device),
        )
        self._ragged: RaggedSteps | None = None
        self._mixed: MixedSteps | None = None
        self._recordings: dict[int, Recording] = {}
        self._refreshed: dict[int, list[RefreshedPlan]] = {}
        """By size, the plans that the host makes anew for each step."""
        self._hidden, self._logits = torch.empty(0), torch.empty(0)
        self._replayed: Tensor | None = None
        """Hidden states that were handed out and whose logits are in `_logits`."""

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size, the largest first. All rows are padding, so no KV changes.

        Raises:
            ModelError: the recorder cannot.
        """
        for rows in reversed(self._sizes.rows):
            batch = self._inputs.batch(rows)
            plans = self._captured_plans(batch)
            several = len(self._sizes.rows) > 1
            if several and not self._recordings:
                self._hidden, self._logits = map(torch.empty_like, self._answer(batch, plans))
            run = partial(self._run_into if several else self._run, batch, plans)
            self._recordings[rows] = self.recorder.capture(run, Extent.decode(rows))
        if self._sizes.tokens:
            self._ragged = self._capture_ragged(self._sizes.tokens)
        # Sizes may be those of a target, and this the model that drafts for it.
        if self._sizes.mixed and self._model.launch_blocker is None:
            arguments = (self._model, self._cache, self._sizes, self.recorder, self._device)
            self._mixed = MixedSteps(*arguments)

    def _captured_plans(self, batch: AttentionBatch) -> Plans:
        try:
            plans = self._model.plan(batch, self._cache.groups)
        except RuntimeError as error:  # Of a library, as where its buffers are too small.
            raise Uncaptured(f"attention cannot be planned for them ({error})") from error
        every = [plan for kinds in plans for plan in kinds.values()]
        refreshed = [plan for plan in every if isinstance(plan, RefreshedPlan)]
        self._refreshed[len(batch.query_lens)] = refreshed
        return plans

    def _refresh(self, size: int, batch: AttentionBatch) -> None:
        """Plan the rows of a step, and its padding of one token each."""
        if not (plans := self._refreshed[size]):
            return
        padding = [1] * (size - len(batch.query_lens))
        lengths = [*map(add, batch.num_computed, batch.query_lens), *padding]
        for plan in plans:
            plan.refresh(lengths)

    def _capture_ragged(self, tokens: int) -> RaggedSteps:
        most = Extent(tokens, min(tokens, self._sizes.rows[-1]))
        length = self._sizes.length
        return RaggedSteps(self._model, self._cache, most, length, self.recorder, self._device)

    def _run(self, batch: AttentionBatch, plans: Plans) -> tuple[Tensor, ...]:
        """Captured function if there is one size."""
        self._hidden, self._logits = self._answer(batch, plans)
        return self._hidden, self._logits

    def _run_into(self, batch: AttentionBatch, plans: Plans) -> tuple[Tensor, ...]:
        """Captured function. All sizes write the same output: logits per size would not fit in
        memory."""
        hidden, logits = self._answer(batch, plans)
        self._hidden[: len(hidden)].copy_(hidden)
        self._logits[: len(logits)].copy_(logits)
        return ()

    @torch.inference_mode()
    def holds(self) -> bool:
        """True if replays equal eager steps bit for bit, on rows that no capture has seen. A model
        that decides on the host what to compute fails this check.
        """
        for size, recording in self._recordings.items():
            rows = self._inputs.try_out(size)
            batch = self._inputs.batch(rows)
            self._hidden.fill_(torch.nan)
            # The replay runs first, so that it finds no KV written by the model.
            recording.replay(Extent.decode(rows))
            hidden, logits = self._answer(batch, self._model.plan(batch, self._cache.groups))
            if not torch.equal(self._hidden[:rows], hidden):
                return False
            if not torch.equal(self._logits[:rows], logits):
                return False
        return self._ragged is None or self._ragged.holds()

    def _answer(self, batch: AttentionBatch, plans: Plans) -> tuple[Tensor, Tensor]:
        rows, inputs = len(batch.query_lens), self._inputs
        hidden = self._model.run(
            inputs.tokens[:rows], inputs.positions[:rows], batch, self._cache, plans
        )
        return hidden, self._model.logits(hidden)

    @torch.inference_mode()
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
        assert cache is self._cache
        adapters = self._model.adapters
        eager = bool(texts) or media is not None or positions.ndim > 1
        eager = eager or (adapters is not None and adapters.needs_eager)
        self._replayed, size = None, None if eager else self._size(batch)
        if size is None:
            if not eager and (hidden := self._any_shape(tokens, positions, batch)) is not None:
                return hidden
            return self._model.forward(tokens, positions, batch, cache, texts, media)
        cache.begin(batch)
        self._inputs.write(tokens, positions, batch)
        self._refresh(size, batch)
        self._recordings[size].replay(Extent.decode(len(tokens)))
        # A copy, since the next replay overwrites the original.
        self._replayed = self._hidden[: len(tokens)].clone()
        return self._replayed

    __call__ = forward

    def _any_shape(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> Tensor | None:
        """Replayed hidden states of a step with prompt chunks; None if no capture covers it."""
        if self._ragged is not None and self._ragged.fits(batch):
            return self._ragged.forward(tokens, positions, batch)
        if self._mixed is not None and (size := self._mixed.fitting(batch)) is not None:
            return self._mixed.forward(tokens, positions, batch, size)
        return None

    def _size(self, batch: AttentionBatch) -> int | None:
        """The captured size for this step; None if it is no decode step or no size fits."""
        rows = len(batch.query_lens)
        masks = (batch.ranges, batch.trees, batch.last_keys)
        special = any(mask is not None for mask in masks)
        if not self._recordings or special or max(batch.query_lens) > 1:
            return None
        return self._sizes.fitting(rows, max(batch.num_computed) + 1)

    def without_draft_inputs(self, hidden: Tensor) -> Tensor:
        """See `models.decoder.Model.without_draft_inputs`."""
        return self._model.without_draft_inputs(hidden)

    def has_logits(self, hidden: Tensor) -> bool:
        """Whether a replay has made the logits of these hidden states."""
        return self._replayed is not None and hidden is self._replayed

    def logits(self, hidden: Tensor) -> Tensor:
        """See `models.decoder.Model.logits`. Those of a replayed step exist already; the next
        replay overwrites them, and the caller may."""
        is_replayed, self._replayed = self.has_logits(hidden), None
        if is_replayed:
            return self._logits[: len(hidden)]
        logits = None if self._ragged is None else self._ragged.logits(hidden)
        return self._model.logits(hidden) if logits is None else logits
