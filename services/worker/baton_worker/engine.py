"""The engine: a model on its device, a cache, and the runner that steps them."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from baton.errors import ModelError
from baton.hub import resolve as fetch
from baton.logs import logger
from baton.protocol import Plan, Result
from baton_worker import warmup
from baton_worker.allocator import keep_freed_memory
from baton_worker.batch import Batch
from baton_worker.config import Config
from baton_worker.encoding import EncoderRunner, MixedRunner
from baton_worker.grammar import GRAMMARS
from baton_worker.grammar.constraints import Constraints
from baton_worker.grammar.constraints import Engine as Grammars
from baton_worker.grammar.vocabulary import Vocabulary
from baton_worker.kernels import cpu
from baton_worker.kv import KVCache
from baton_worker.kv.host import HostPages
from baton_worker.layers.moe import watch
from baton_worker.layers.routers.load import ExpertLoad
from baton_worker.models import LoadedModel, load_model
from baton_worker.models.decoder import Model
from baton_worker.models.encoder import EncoderModel
from baton_worker.pooling.pools import Pools
from baton_worker.resolution import Placement, Resolved, place, resolve
from baton_worker.runner import Runner

log = logger(__name__)


class Engine:
    """Life cycle: `build` loads and warms up, `step` runs plans in order, `reset` forgets all
    sequences so that another scheduler can start from nothing."""

    def __init__(
        self, loaded: LoadedModel, resolved: Resolved, grammars: Grammars | None = None
    ) -> None:
        self.resolved = resolved
        self._model, placement = loaded.model, resolved.placement
        self._cache = KVCache(
            loaded.spec,
            resolved.num_pages,
            resolved.page_size,
            dtype=placement.dtype,
            device=placement.device,
            codes=placement.codes,
        )
        host_pages = resolved.host_pages
        self._host = HostPages(self._cache, host_pages) if host_pages else None
        self._grammars = grammars
        self._runner = self._new_runner()
        self._steps = 0
        self.experts: ExpertLoad | None = None
        """How the experts of the model are used, if that is counted."""

    @classmethod
    def build(cls, config: Config) -> Engine:
        """Find, load and warm up the model that the settings name.

        Raises:
            HubError: the model cannot be found.
            ModelError: it cannot be loaded.
            SettingsError: it does not fit here.
        """
        keep_freed_memory()
        cpu.use(config)
        placement = place(config)
        torch.set_num_threads(placement.threads)
        path = fetch(config)
        loaded = _load(path, placement, config)
        grammars = None
        if loaded.generates:
            grammars = _grammars(config.grammar, path, loaded.vocab_size)
        engine = cls(loaded, resolve(config, placement, loaded), grammars)
        log.info("running on %s", engine.resolved)
        engine.warm_up()
        if config.expert_window:
            engine.experts = watch(engine._model, config.expert_window)
        # What exists now lives for ever: the collector need not look at it between two steps.
        gc.freeze()
        return engine

    @property
    def cache(self) -> KVCache:
        """The pages."""
        return self._cache

    @property
    def idle(self) -> bool:
        """No sequence is held."""
        return len(self._runner.batch) == 0

    @property
    def progress(self) -> int:
        """A counter that advances with every layer of every step. Any thread may read it."""
        return self._steps + self._model.progress

    def step(self, plan: Plan, turn: int = 0) -> Result:
        """Run one step of a plan; see `Runner.step`."""
        result = self._runner.step(plan, turn)
        self._steps += 1
        if self.experts is not None:
            self._count_experts(self.experts)
        return result

    def _count_experts(self, load: ExpertLoad) -> None:
        load.close_step()
        if report := load.report():
            log.info("%s", report)

    def reset(self) -> None:
        """Forget every sequence. Their pages are free, for what the engine knows."""
        self._runner = self._new_runner()

    def warm_up(self) -> None:
        """Meet the common shapes once."""
        for plan in warmup.plans(self.resolved):
            self.step(plan)
        self.reset()

    def _new_runner(self) -> Runner:
        resolved = self.resolved
        batch = Batch(
            max_rows=resolved.max_rows,
            max_length=resolved.max_length,
            page_size=resolved.page_size,
            num_pages=resolved.num_pages,
            vocab_size=resolved.vocab_size,
            window=resolved.window,
            constraints=Constraints(self._grammars, resolved.vocab_size),
        )
        device, pools = resolved.placement.device, Pools(self._model.pooler)
        if isinstance(self._model, EncoderModel):
            return EncoderRunner(self._model, self._cache, batch, device, pools)
        made: Runner
        whole = resolved.pooling is not None and resolved.pooling.reach == "whole"
        if whole and isinstance(self._model, Model):
            made = MixedRunner(self._model, self._cache, batch, device, pools)
        else:
            made = Runner(self._model, self._cache, batch, device, pools)
        made.host = self._host
        return made


def _grammars(name: str, path: Path, vocab_size: int) -> Grammars | None:
    """The grammar engine, or None for a checkpoint without a vocabulary that it can follow."""
    try:
        vocabulary = Vocabulary.read(path, vocab_size)
    except ModelError as error:
        log.warning("structured output is not available: %s", error.message)
        return None
    grammars: Grammars = GRAMMARS.load(name)(vocabulary)
    return grammars


def _load(path: Path, placement: Placement, config: Config) -> LoadedModel:
    return load_model(
        path,
        device=placement.device,
        dtype=placement.dtype,
        served_length=config.max_length or None,
        task=config.task,
        pooling=config.pooling,
        router=config.router,
        quantize=config.quantize,
        codes=placement.codes,
    )
