"""A standby of a worker: what it loads, when, and as which worker it starts."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from baton.checkpoint.hub import resolve as fetch
from baton.checkpoint.hub import served_name
from baton.errors import BatonError
from baton.logs import logger
from baton.process import standby
from baton.process.segments import Segments
from baton.protocol import WeightVersion
from baton_worker.checkpoint.kept_weights import OF_ONE
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.memory import has_room
from baton_worker.engine.startup import weight_keeper
from baton_worker.engine.weight_switch import files_of
from baton_worker.kernels.cpu.huge_pages import give_back
from baton_worker.kv_transfer.vllm_config import resolve
from baton_worker.layers.build_context import device_of
from baton_worker.weight_transfer.contents import check
from baton_worker.weight_transfer.spool import WeightSpool

_ROOM_SECONDS = 5.0
"""Interval at which a standby checks for memory for its weights, and for new weights."""

log = logger(__name__)


def await_room(config: Config) -> None:
    """Wait, in a standby on a CPU, until memory has room for what would be there twice, or it is
    called."""
    shared, is_logged = Segments(config.run_dir), False
    if _on_gpu(config):
        return
    while standby.held() and not has_room(fetch(config), shared.held_bytes() or 0):
        if not is_logged:
            log.info("memory has no room for the weights beside those of the workers: waiting")
            is_logged = True
        standby.wait(_ROOM_SECONDS)


def await_kept_weights(config: Config) -> None:
    """Wait, in a standby of a worker on a GPU, until the keeper of the GPU has the weights, or it
    is called: it never loads them a second time beside the worker that it stands in for."""
    is_logged = False
    while standby.held() and _on_gpu(config) and not _kept(config):
        if not is_logged:
            log.info("the keeper of the GPU has no weights to start with: waiting")
            is_logged = True
        standby.wait(_ROOM_SECONDS)


def _on_gpu(config: Config) -> bool:
    return device_of(config).type == "cuda"


def _kept(config: Config) -> bool:
    """Whether the keepers of its GPUs have the weights that workers use, of every rank."""
    version = WeightSpool(config.run_dir, served_name(config)).version()
    base, patches = files_of(fetch(config), version)
    keepers = [
        weight_keeper(config, base, patches, device_of(config, rank), rank)
        for rank in range(config.num_ranks)
    ]
    return all(keeper is not None and keeper.has_them for keeper in keepers)


def in_place_of(arguments: Sequence[str], config: Config) -> Config:
    """The settings of a standby that takes the place of a worker with these arguments: its name,
    role and addresses, which the engine does not know."""
    if not arguments:
        return config
    replaced = resolve(Config.load(arguments))
    return config.model_copy(update={name: getattr(replaced, name) for name in OF_ONE})


def with_pages_of_others(config: Config) -> Config:
    """The settings of a standby: it can take over the pages of a worker if it has as many."""
    pages = Segments(config.run_dir).leased_pages() if standby.held() else 0
    return config.model_copy(update={"num_gpu_blocks_override": pages}) if pages else config


def load_engine(config: Config) -> Engine:
    """An engine with the weights that the workers of this host use. A standby follows them until it
    is called."""
    spool = WeightSpool(config.run_dir, served_name(config))
    tried = spool.version()
    engine, on_gpu = _engine(config, tried), _on_gpu(config)
    if standby.held():
        log.info("loaded; waiting to %s", "fork workers" if standby.forks() else "take over")
    while True:
        standby.wait(_ROOM_SECONDS)
        version = spool.version()
        if standby.held() and on_gpu and not (engine.keeps_memory and version == tried):
            # A worker sleeps, or has other weights: this process must not hold its memory.
            raise SystemExit(0)
        if version != tried:
            tried = version
            engine.close()
            del engine
            gc.unfreeze()
            gc.collect()
            engine = _engine(config, version)
        elif not standby.held():
            return engine


def _engine(config: Config, version: WeightVersion | None) -> Engine:
    """An engine with these weights, or with those of the start where these cannot be loaded: the
    scheduler gives no sequence to a worker with other weights than the rest. That of a standby has
    pages that take no memory: what warming up has written to them is dropped."""
    engine = _warm_engine(config, version)
    drops = standby.held() and engine.kept_pages is None
    for plane in engine.cache.planes if drops else ():
        give_back(plane)
    return engine


def _warm_engine(config: Config, version: WeightVersion | None) -> Engine:
    if version is not None:
        try:
            for source in version.sources:
                check(source)
            return Engine.build(config, version)
        except BatonError as error:
            log.error("weights %s are not loaded: %s", version.label, error.message)
    return Engine.build(config)
