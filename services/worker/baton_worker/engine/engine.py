"""The engine: a model on its device, a cache, and the runner that steps them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from msgspec import structs

from baton.checkpoint.hub import resolve as fetch
from baton.logs import logger
from baton.protocol import Plan, Result, WeightVersion
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine import warmup
from baton_worker.engine.async_scheduling.staged_steps import StagedSteps
from baton_worker.engine.batch.draft_tokens import NO_DRAFTS
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.engine.multimodal.encoder_step import EncoderStep
from baton_worker.engine.runner_factory import RunnerFactory
from baton_worker.engine.runtime_stats import RuntimeStats
from baton_worker.engine.speculation import step_timing
from baton_worker.engine.startup import load, page_settings, prepare, shared_pages
from baton_worker.engine.weight_switch import files_of, load_beside, trial_config
from baton_worker.executor.executor import Executor, assemble, check
from baton_worker.executor.kv_transfer import LeaderKVTransfer
from baton_worker.graphs import Recorder
from baton_worker.kernels.cpu.call_recorder import CallRecording
from baton_worker.kernels.cpu.huge_pages import ARENA
from baton_worker.kernels.cpu.shared_pages import SharedPages
from baton_worker.kv_cache import KVCache
from baton_worker.kv_cache.kept_pages import KeptPages
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.expert_load import ExpertLoad
from baton_worker.layers.moe.moe import watch
from baton_worker.lora.store import AdapterStore, open_store
from baton_worker.lora.store import check as check_lora
from baton_worker.platform.cpu_threads import wake_threads
from baton_worker.platform.device_link import CudaLink, DeviceLink, Download
from baton_worker.platform.device_lock import memory_lock
from baton_worker.platform.malloc import release_freed_memory
from baton_worker.speculative.step_costs import StepCosts
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.startup import constraints_of

_TRIAL_STEPS = 3
"""A prompt, a token after it, and their end."""

log = logger(__name__)


class Engine:
    """Life cycle: `build` loads and warms up, `step` runs plans in order, `reset` forgets all
    sequences so that another scheduler can start from nothing."""

    def __init__(
        self,
        loaded: LoadedModel,
        resolved: EngineConfig,
        constraints: StructuredOutputManager | None = None,
        team: Executor | None = None,
        recorder: Recorder | None = None,
        adapters: AdapterStore | None = None,
        link: DeviceLink | None = None,
        version: WeightVersion | None = None,
    ) -> None:
        """`recorder` captures steps, and `link` copies for those that are launched ahead, if
        `resolved` allows that; None: the device's default. `adapters` are the LoRA adapters, if any
        are served. `version` names the weights."""
        self.adapters = adapters
        self.version = version or WeightVersion()
        self._sharing: SharedPages | None = None
        self._load_version: Callable[[LoadedModel, WeightVersion], LoadedModel] | None = None
        self.resolved = resolved
        self._loaded, self._model, self._team = loaded, loaded.model, team or Executor()
        self.kept_pages: KeptPages | None = None
        """The memory of the pages, where it outlives this worker."""
        self._cache = self._new_cache()
        self._host = self._team.host(self._cache, resolved.host_pages)
        if constraints is None:
            constraints = StructuredOutputManager(None, resolved.vocab_size)
        self._constraints = constraints
        self._link = None if resolved.synchronous else link or CudaLink()
        self._factory = self._new_factory(recorder)
        self._runner = self._factory.runner(NO_DRAFTS)
        self._pipeline = self._factory.pipeline(self._runner)
        self._steps = 0
        self.experts: ExpertLoad | None = None
        """Usage of the model's experts, if that is counted."""
        self.stats: RuntimeStats | None = None
        """Step statistics, if enabled."""

    def _new_cache(self) -> KVCache:
        settings = page_settings(self._loaded, self.resolved)
        if self.resolved.pages is not None:
            self.kept_pages, allocate = self.resolved.pages.lease(settings)
            settings["allocate"] = allocate
        return self._team.cache(**settings)

    def _new_factory(
        self, recorder: Recorder | None = None, step_costs: StepCosts | None = None
    ) -> RunnerFactory:
        return RunnerFactory(
            self._loaded,
            self.resolved,
            self._cache,
            self._host,
            self._team,
            constraints=self._constraints,
            adapters=self.adapters,
            link=self._link,
            recorder=recorder,
            step_costs=step_costs,
        )

    @classmethod
    def build(cls, config: Config, version: WeightVersion | None = None) -> Engine:
        """Find, load and warm up the model that the settings name, with the weights of a version
        if one is given.

        Raises:
            HubError: the model cannot be found.
            ModelError: it cannot be loaded.
            SettingsError: it does not fit here.
        """
        check(config)
        check_lora(config)
        context, path = prepare(config), fetch(config)
        base, patches = files_of(path, version)
        # Followers load as soon as they have joined, so that they start under the lock too.
        with memory_lock(context.device, config.run_dir):
            team = assemble(config, base, context.device, patches)
            try:
                return cls._loaded_parts(config, path, context, team, version)()
            except BaseException:
                team.close()
                raise

    @classmethod
    def load(cls, config: Config, version: WeightVersion | None = None) -> Callable[[], Engine]:
        """Load the weights alone; the function that it returns makes pages and warms up. For a
        worker of one process. Raises as `build`."""
        context, path = prepare(config), fetch(config)
        base, patches = files_of(path, version)
        with memory_lock(context.device, config.run_dir):
            team = assemble(config, base, context.device, patches)
            return cls._loaded_parts(config, path, context, team, version)

    @classmethod
    def _loaded_parts(
        cls,
        config: Config,
        path: Path,
        context: BuildContext,
        team: Executor,
        version: WeightVersion | None,
    ) -> Callable[[], Engine]:
        """Load the weights; returns what builds the engine."""
        base, patches = files_of(path, version)
        ranks = (team.ranks, team.lockstep, team.pipeline)
        loaded, resolved, sharing = load(config, base, context, *ranks, patches)
        constraints = _constraints(config, path, loaded) if loaded.generates else None
        adapters = open_store(config, loaded, team.put_adapter)
        load_version = partial(load_beside, config, path, context, team)

        def begin() -> Engine:
            engine = cls(loaded, resolved, constraints, team, adapters=adapters, version=version)
            engine._sharing, engine._load_version = sharing, load_version
            engine._begin(config)
            return engine

        return begin

    def _begin(self, config: Config) -> None:
        """Warm up, and set up statistics."""
        self.warm_up()
        self._team.warmed_up()
        log.info("running on %s", self.resolved)
        build = self.resolved.build
        if config.expert_stats_window:
            self.experts = watch(self._model, config.expert_stats_window)
        if config.runtime_stats:
            interval = config.runtime_stats_interval
            self.stats = RuntimeStats(interval, build.device, build.attention.counts)
        # Objects that exist now stay until the process exits, so the garbage collector skips them.
        gc.freeze()

    @property
    def sleep_blocker(self) -> str | None:
        """Why it cannot sleep, in one sentence; None if it can."""
        if self.resolved.ranks > 1 or self.in_lockstep:
            return "A worker of several processes, or of a group, does not sleep."
        return None

    def sleep(self, level: int, config: Config) -> Callable[[], Callable[[], Engine]]:
        """Returns a function that loads the weights, if they are to be freed, and returns another
        one that builds this engine with them. Dropping this engine then frees its pages and
        captured steps, and from level 2 on its weights."""
        if level > 1:
            if self._loaded.kept is not None:
                self._loaded.kept.drop()
            return partial(Engine.load, config, self.version)
        parts = (self._loaded, self.resolved, self._constraints, self._team)
        adapters, version = self.adapters, self.version
        sharing, load_version = self._sharing, self._load_version

        def wake() -> Engine:
            engine = Engine(*parts, adapters=adapters, version=version)
            engine._sharing, engine._load_version = sharing, load_version
            engine._begin(config)
            return engine

        return lambda: wake

    @property
    def keeps_memory(self) -> bool:
        """Whether the memory that outlives this worker is kept for the next one."""
        pages, weights = self.kept_pages, self._loaded.kept
        return (pages is None or pages.there()) and (weights is None or weights.there())

    @property
    def update_blocker(self) -> str | None:
        """Why its weights cannot change, in one sentence; None if they can."""
        if self.in_lockstep:
            return "The weights of workers that share experts do not change."
        if self._load_version is None:
            return "The weights of this engine do not change."
        return None

    def load_version(self, version: WeightVersion) -> LoadedModel:
        """The model with other weights, beside the one in use. Any thread may call it.

        Raises:
            ModelError: there is no room, or it is another model.
        """
        assert self._load_version is not None, "see `update_blocker`"
        return self._load_version(self._loaded, version)

    def try_out(self, loaded: LoadedModel) -> str:
        """Run two steps of a model with other weights, on pages of their own. Returns why it cannot
        be used, or an empty string."""
        if why := self._team.begin_trial():
            return why
        try:
            why = self._trial(loaded, trial_config(self.resolved))
        finally:
            self._team.end_trial()
        if why:
            self._team.drop_beside()
        return why

    def _trial(self, loaded: LoadedModel, resolved: EngineConfig) -> str:
        adapters = self._adapters_for(loaded)
        trial = Engine(loaded, resolved, team=self._team, adapters=adapters)
        for plan in islice(warmup.plans(resolved), _TRIAL_STEPS):
            if failed := trial.step(plan).failed:
                return f"A step on the new weights failed: {next(iter(failed.values()))}"
        return ""

    def drop_version(self) -> None:
        """Discard loaded weights."""
        self._team.drop_beside()

    def switch_to(self, loaded: LoadedModel, version: WeightVersion, config: Config) -> None:
        """Use other weights of the same model from now on; all sequences are forgotten."""
        build = self.resolved.build
        self._team.switch()
        self.adapters = self._adapters_for(loaded)
        if self._loaded.kept is not None:
            self._loaded.kept.drop()
        self._loaded, self._model, self.version = loaded, loaded.model, version
        self.resolved = replace(self.resolved, eos_ids=loaded.eos_token_ids)
        self._factory = self._new_factory(step_costs=self._factory.drafting.step_costs)
        self._capture()
        if self.experts is not None:
            self.experts = watch(self._model, config.expert_stats_window)
        self.reset()
        # The model before is a reference cycle that was frozen for the garbage collector.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        release_freed_memory()
        if self._sharing is not None:
            self._sharing.replaced()
            self._sharing = shared_pages(config, build.device)
        if self._sharing is not None:
            ARENA.on_written(None)
            self._sharing.finish()

    def _adapters_for(self, loaded: LoadedModel) -> AdapterStore | None:
        """The adapters, for the layers of a model with other weights."""
        if self.adapters is None:
            return None
        return self.adapters.for_model(loaded, self._team.put_adapter)

    @property
    def encoder(self) -> EncoderStep | None:
        """Encoder of images in prompts; None for a model without one."""
        return self._factory.encoder

    @property
    def max_loras(self) -> int:
        """Maximum adapters in a batch; 0 if none are served."""
        return self._factory.max_loras

    @property
    def cache(self) -> KVCache:
        """The KV cache."""
        return self._cache

    def kv_transfer(self, config: Config, name: str) -> KVTransferManager | LeaderKVTransfer:
        """KV transfer of this engine's pages, not started yet."""
        return self._team.kv_transfer(self._cache, config, name)

    @property
    def idle(self) -> bool:
        """True if it holds no sequence."""
        return len(self._runner.batch) == 0 and not self.in_flight

    @property
    def in_flight(self) -> bool:
        """True if a step has been launched whose result is not known."""
        return self._pipeline is not None and self._pipeline.in_flight

    @property
    def ready(self) -> bool:
        """True if `finish` takes no time."""
        return self._pipeline is None or self._pipeline.ready

    @property
    def unread(self) -> Download | None:
        """The copy to the host that `finish` waits for, if any."""
        return None if self._pipeline is None else self._pipeline.unread

    def submit(self, plan: Plan, turn: int = 0) -> list[Result]:
        """Run one step of a plan, or launch it; returns the results that are known now, in order.
        What may raise is as for `step`."""
        if self._pipeline is None:
            return [self.step(plan, turn)]
        self._steps += 1
        return self._pipeline.submit(plan, turn)

    def finish(self) -> list[Result]:
        """Wait for the step in flight, if there is one; returns its result."""
        self._steps += 1
        return [] if self._pipeline is None else self._pipeline.finish()

    @property
    def progress(self) -> int:
        """A counter that advances within every step, with its layers or their kernels. Any thread
        may read it."""
        tower = self._factory.tower
        encoded = 0 if tower is None else tower.progress
        return self._steps + self._model.progress + encoded + CallRecording.made()

    def step(self, plan: Plan, turn: int = 0) -> Result:
        """Run one step of a plan, while none is in flight; see `ModelRunner.step`."""
        result = self._stepped(plan, turn) if self.stats else self._runner.step(plan, turn)
        self._steps += 1
        if self.experts is not None:
            self._count_experts(self.experts)
        balancer = self._loaded.balancer
        if balancer is not None and (news := balancer.news()) is not None:
            result = structs.replace(result, experts=news)
        return result

    def _stepped(self, plan: Plan, turn: int) -> Result:
        assert self.stats is not None
        with self.stats.watching():
            result = self._runner.step(plan, turn)
        ran, seconds, gap = self._runner.ran, result.duration_us / 1e6, result.gap_us / 1e6
        if ran is not None and (report := self.stats.close_step(ran, seconds, gap)):
            log.info("%s", report)
        return result

    def _count_experts(self, load: ExpertLoad) -> None:
        load.close_step()
        if report := load.report():
            log.info("%s", report)

    def reset(self) -> None:
        """Forget every sequence and its pages, and a step in flight."""
        if isinstance(self._pipeline, StagedSteps):
            self._pipeline.abandon()
        self._runner.batch.drafts.release(np.flatnonzero(self._runner.batch.sequences.held))
        self._runner = self._factory.runner()
        self._pipeline = self._factory.pipeline(self._runner)

    @property
    def in_lockstep(self) -> bool:
        """True if other workers wait for this one before each step."""
        return self._team.lockstep is not None

    @property
    def team(self) -> str:
        """Lifetime name of the group of workers that end together."""
        return self._team.name

    def run_dummy_step(self) -> bool:
        """Without a plan: join a step of other workers. Returns True if they run one."""
        return self._team.run_dummy_step()

    def leave(self) -> None:
        """Returns when this worker can exit without failing a step of others."""
        self._team.leave()

    def close(self) -> None:
        """End child processes."""
        self._team.close()

    def warm_up(self) -> None:
        """Run the common shapes once, then capture steps.

        Raises:
            ModelError: a step of the model fails.
        """
        wake_threads()
        for plan in warmup.plans(self.resolved):
            self._first_step(plan)
        self._capture()
        if self.resolved.speculative is not None:
            self._measure_steps()
        self.reset()

    def _measure_steps(self) -> None:
        """Measure step costs, which decide how many drafts save time."""
        self._runner = self._factory.runner(step_timing.OPTIONS)
        self._factory.drafting.measure(self._first_step)

    def _first_step(self, plan: Plan) -> Result:
        """A step before any of a sequence: pages that outlive a worker may be in use."""
        if self.kept_pages is not None:
            plan = warmup.onto(self._cache.num_pages, plan)
        return self.step(plan)

    def _capture(self) -> None:
        """Capture steps, or record why they run eagerly."""
        if (reason := self._factory.capture()) is not None:
            self.resolved = replace(self.resolved, graphs=None, eager=reason)


def _constraints(config: Config, path: Path, loaded: LoadedModel) -> StructuredOutputManager | None:
    return constraints_of(
        path,
        loaded.vocab_size,
        backend=config.grammar_backend,
        jump_ahead=config.jump_forward,
    )
