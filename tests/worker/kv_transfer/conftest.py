from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_worker.config import Config
from baton_worker.kv_cache import KVCache
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.manager import host
from baton_worker.kv_transfer.nixl import Nixl
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.kv_transfer.registry import TRANSPORTS
from baton_worker.kv_transfer.transport import Transport, UnusableError
from tests.fakes.page_caches import filled


@functools.cache
def agent(side: str) -> Transport:
    """NIXL takes a second to start: one per side and process."""
    return Nixl(Config())


def transport(name: str, run_dir: Path, side: str) -> Transport:
    try:
        if name == "nixl":
            return agent(side)
        made: Transport = TRANSPORTS.load(name)(Config(run_dir=run_dir))
    except UnusableError as error:
        pytest.skip(f"{name}: {error.message}")
    return made


@pytest.fixture(params=[n for n in TRANSPORTS.names() if not TRANSPORTS.load(n).on_device])
def carried_by(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    name: str = request.param
    return name


@pytest.fixture
def here(run_dir: Path) -> str:
    return host(Config(run_dir=run_dir))


@pytest.fixture
def source(run_dir: Path, carried_by: str, here: str) -> Iterator[Exporter]:
    """It has pages of 8 tokens and one transport."""
    own = transport(carried_by, run_dir, "source")
    made = Exporter(PageContent(filled(8)), f"ipc://{run_dir}/pages.sock", {carried_by: own}, here)
    made.start()
    yield made
    made.stop()
    own.close()


@pytest.fixture
def importer(run_dir: Path, carried_by: str, here: str) -> Iterator[Callable[[KVCache], Importer]]:
    """Makes the target of a cache, with that transport."""
    own, made = transport(carried_by, run_dir, "target"), list[Importer]()

    def make(cache: KVCache) -> Importer:
        made.append(Importer(PageContent(cache), f"w{len(made)}", {carried_by: own}, here))
        return made[-1]

    yield make
    for one in made:
        one.close()
    own.close()
