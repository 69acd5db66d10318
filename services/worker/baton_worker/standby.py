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
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.memory import has_room
from baton_worker.kernels.cpu.huge_pages import give_back
from baton_worker.kv_transfer.vllm_config import resolve
from baton_worker.weight_transfer.contents import check
from baton_worker.weight_transfer.spool import WeightSpool

_ROOM_SECONDS = 5.0
"""How often a standby looks whether there is room for its weights, and for other weights."""

_OF_ONE = ("name", "role", "fleet_address", "bind_kv", "advertise_kv")
"""Settings in which workers that share a standby may differ."""

log = logger(__name__)


def await_room(config: Config) -> None:
    """Wait, in a standby, until memory has room for what would be there twice, or it is called."""
    shared, said = Segments(config.run_dir), False
    while standby.held() and not has_room(fetch(config), shared.held_bytes() or 0):
        if not said:
            log.info("memory has no room for the weights beside those of the workers: waiting")
            said = True
        standby.wait(_ROOM_SECONDS)


def in_place_of(arguments: Sequence[str], config: Config) -> Config:
    """The settings of a standby that takes the place of a worker with these arguments: its name,
    role and addresses, which the engine does not know."""
    if not arguments:
        return config
    replaced = resolve(Config.load(arguments))
    return config.model_copy(update={name: getattr(replaced, name) for name in _OF_ONE})


def with_pages_of_others(config: Config) -> Config:
    """The settings of a standby: it can take over the pages of a worker if it has as many."""
    pages = Segments(config.run_dir).leased_pages() if standby.held() else 0
    return config.model_copy(update={"num_gpu_blocks_override": pages}) if pages else config


def load_engine(config: Config) -> Engine:
    """An engine with the weights that the workers of this host use. A standby follows them until it
    is called."""
    spool = WeightSpool(config.run_dir, served_name(config))
    tried = spool.version()
    engine = _engine(config, tried)
    if standby.held():
        log.info("loaded; waiting to fork workers")
    while True:
        standby.wait(_ROOM_SECONDS)
        if (version := spool.version()) != tried:
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
    for plane in engine.cache.planes if standby.held() else ():
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
