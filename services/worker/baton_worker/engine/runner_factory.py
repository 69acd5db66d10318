"""Builds the runner of an engine, anew after each reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.engine.async_scheduling.async_forward import AsyncForward
from baton_worker.engine.async_scheduling.staged_forward import StagedForward
from baton_worker.engine.async_scheduling.staged_steps import StagedSteps
from baton_worker.engine.async_scheduling.step_pipeline import StepPipeline
from baton_worker.engine.batch.draft_tokens import DraftOptions
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch, MediaInputs
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.forward.bidirectional_forward import BidirectionalForward
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.forward.dual_encoder_forward import DualEncoderForward
from baton_worker.engine.forward.encoder_forward import EncoderForward
from baton_worker.engine.forward.forward_pass import ForwardPass
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.engine.multimodal.cross_encoder_step import CrossEncoderStep
from baton_worker.engine.multimodal.cross_page_table import CrossPageTable
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal.encoder_step import EncoderStep
from baton_worker.engine.speculation.drafting import Drafting
from baton_worker.executor.executor import Executor
from baton_worker.graphs import GraphedModel, Recorder
from baton_worker.graphs.startup import graphed_model
from baton_worker.kv_cache import KVCache, bytes_per_cross_page
from baton_worker.kv_cache.host_pages import HostPages
from baton_worker.lora.slots import AdapterSlots
from baton_worker.lora.store import AdapterStore
from baton_worker.models.decoder import Model
from baton_worker.models.dual_encoder import DualEncoderModel
from baton_worker.models.encoder import EncoderModel
from baton_worker.platform.device_link import DeviceLink
from baton_worker.speculative.step_costs import StepCosts
from baton_worker.structured_output.manager import StructuredOutputManager

_ENCODERS: dict[type, Callable[[Any, torch.device], ForwardPass]] = {
    EncoderModel: EncoderForward,
    DualEncoderModel: DualEncoderForward,
}
"""Forward passes of models without pages; all others are causal."""


class RunnerFactory:
    """What outlives a runner of one model: encoder, proposer and captured steps.

    Args:
        loaded: the model.
        resolved: sizes of the batch and options of the model.
        cache: the pages.
        host: pages on the host, if any.
        team: the processes that share the model.
        constraints: grammars of structured output.
        adapters: LoRA adapters, if any are served.
        link: what copies for steps that are launched ahead; None: steps are not.
        recorder: captures steps, if `resolved` allows that; None: the device's default.
        step_costs: measured costs of steps, if known.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        resolved: EngineConfig,
        cache: KVCache,
        host: HostPages | None,
        team: Executor,
        *,
        constraints: StructuredOutputManager,
        adapters: AdapterStore | None,
        link: DeviceLink | None,
        recorder: Recorder | None = None,
        step_costs: StepCosts | None = None,
    ) -> None:
        self._loaded, self._model, self._resolved = loaded, loaded.model, resolved
        self._cache, self._host, self._team = cache, host, team
        self._constraints, self._adapters, self._link = constraints, adapters, link
        self.tower = loaded.model.vision if isinstance(loaded.model, Model) else None
        """Encoder of images and audio; None for a model without one."""
        self.encoder = self._encoder_step()
        """Runs the tower on the media of prompts, with a cache."""
        self.drafting = Drafting(loaded, resolved, step_costs)
        self.graphed = self._graphs(recorder)
        """Captures and replays steps; None if they run eagerly."""

    @property
    def max_loras(self) -> int:
        """Maximum adapters in a batch; 0 if none are served."""
        column = self._resolved.build.adapters
        return 0 if self._adapters is None or column is None else column.max_loras

    def capture(self) -> str | None:
        """Capture steps. Returns why they run eagerly, as half a sentence."""
        reason = None if self.graphed is None else self._team.capture(self.graphed)
        if reason is not None:
            self.graphed = None
        return reason

    def runner(self, drafting: DraftOptions | None = None) -> ModelRunner:
        """A runner without sequences. With `drafting`, one for the first steps."""
        resolved = self._resolved
        return ModelRunner(
            self._forward_pass(),
            self._cache,
            self._batch(drafting),
            pooler=self._model.pooler,
            host=self._host,
            sampler=resolved.build.sampler,
            encoder=self.encoder,
            alignment_filter=self._loaded.spec.alignment_filter if resolved.alignment else 0,
        )

    def pipeline(self, runner: ModelRunner) -> StepPipeline | StagedSteps | None:
        """What runs several steps of a runner at once; None if each ends before the next begins."""
        speculates = self._resolved.speculative is not None
        if isinstance(runner.forward, StagedForward):
            stages = self._resolved.stages
            return StagedSteps(runner, runner.forward, stages, speculates=speculates)
        if self._link is None:
            return None
        return StepPipeline(runner, speculates=speculates)

    def _batch(self, drafting: DraftOptions | None) -> InputBatch:
        resolved = self._resolved
        # The first steps may write to a page that no sequence may.
        spare = 0 if drafting is None else resolved.spare_pages
        sizes = BatchSizes(
            resolved.max_num_seqs,
            resolved.max_model_len,
            resolved.page_size,
            resolved.num_pages + spare,
            resolved.vocab_size,
            resolved.groups.windows,
            resolved.max_num_batched_tokens,
        )
        shape = getattr(self._model, "image_shape", None)
        return InputBatch(
            sizes,
            constraints=self._constraints.fresh(),
            media=MediaInputs(shape, self.tower, self._loaded.unstaged.position_axes),
            adapters=self._adapter_slots(),
            drafting=self.drafting.options() if drafting is None else drafting,
            sampler=resolved.build.sampler,
        )

    def _adapter_slots(self) -> AdapterSlots | None:
        if self._adapters is None:
            return None
        targets, rows = self._adapters.targets, self._resolved.max_num_seqs
        return AdapterSlots(self._adapters, targets, self.max_loras, rows)

    def _encoder_step(self) -> EncoderStep | None:
        if self.tower is None:
            return None
        resolved = self._resolved
        cache, device = EncoderCache(resolved.encoder_cache_bytes), resolved.build.device
        if not self.tower.cross:
            return EncoderStep(self.tower, cache, device)
        page_bytes = bytes_per_cross_page(
            self._loaded.unstaged, resolved.page_size, resolved.build.dtype
        )
        table = CrossPageTable(resolved.page_size, page_bytes, resolved.encoder_cache_bytes)
        return CrossEncoderStep(self.tower, cache, device, table)

    def _graphs(self, recorder: Recorder | None) -> GraphedModel | None:
        sizes, device = self._resolved.graphs, self._resolved.build.device
        if sizes is None:
            return None
        return graphed_model(self._model, self._cache, sizes, device, recorder, self._team.ranks)

    def _forward_pass(self) -> ForwardPass:
        device = self._resolved.build.device
        if (encoder := _ENCODERS.get(type(self._model))) is not None:
            return encoder(self._model, device)
        model = self._team.model(self.graphed or self._model)
        forward = self._causal_forward(model)
        self._team.share_indices(model, forward.buffers, len(self._cache.groups.windows))
        return forward

    def _causal_forward(self, model: Any) -> CausalForward:
        resolved, cache = self._resolved, self._cache
        device, pooling = resolved.build.device, resolved.pooling
        if self._link is not None:
            return AsyncForward(model, cache, device, self._link, resolved.max_num_seqs)
        if resolved.stages > 1:
            return StagedForward(model, cache, device, resolved.stages)
        whole = pooling is not None and pooling.reach == "whole"
        kind = BidirectionalForward if whole else CausalForward
        return kind(model, cache, device, resolved.build.adapters)
