from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.process.lifecycle import Lifecycle
from baton_scheduler.config import Config
from baton_scheduler.service import serve
from tests.fakes.openai_server import Completions, Site


@pytest.fixture
def scheduler(run_dir: Path) -> Iterator[Config]:
    """A real scheduler in a thread, and where it is."""
    with serving(Config(run_dir=run_dir)) as config:
        yield config


@contextmanager
def serving(config: Config) -> Iterator[Config]:
    """A real scheduler in a thread."""
    life = Lifecycle(drain_seconds=5.0)
    thread = threading.Thread(target=serve, args=(config, life), daemon=True)
    thread.start()
    yield config
    life.stop()
    thread.join(timeout=60)


@pytest.fixture
def fake() -> Completions:
    """A server that speaks OpenAI's completions and counts what it is asked."""
    return Completions()


@pytest.fixture
def url(fake: Completions) -> Iterator[str]:
    """Where it listens."""
    with Site(fake.app) as site:
        yield site.url
