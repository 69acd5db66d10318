"""Fixtures that run a test on every journal, and on every store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from baton_gateway.config import Config
from baton_gateway.durable.journal import Journal, StreamRecord
from baton_gateway.durable.object_store import ObjectStore
from baton_gateway.durable.redis import RedisJournal
from baton_gateway.durable.redis_objects import RedisObjects
from baton_gateway.durable.sqlite import SqliteJournal
from baton_gateway.durable.sqlite_objects import SqliteObjects


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets so many seconds pass at once, by the clock of leases and expiry."""
    now, passed = time.time, 0.0

    def later(seconds: float) -> None:
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(time, "time", lambda: now() + passed)
    return later


@pytest.fixture(params=["sqlite", "redis"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Journal]:
    """Opens the same journal again and again, as several gateways would."""
    server = fakeredis.FakeServer()

    def here(**settings: Any) -> Journal:
        if request.param == "sqlite":
            return SqliteJournal(Config(journal_path=tmp_path / "deep" / "journal", **settings))
        config = Config(redis_url="redis://localhost", **settings)
        return RedisJournal(config, lambda url: fakeredis.FakeAsyncRedis(server=server))

    return here


@pytest.fixture(params=["sqlite", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ObjectStore]:
    """Opens the same store again and again, as several gateways would."""
    server = fakeredis.FakeServer()

    def here(**settings: Any) -> ObjectStore:
        if request.param == "sqlite":
            return SqliteObjects(Config(store_path=tmp_path / "deep" / "store", **settings))
        config = Config(redis_url="redis://localhost", **settings)
        return RedisObjects(config, lambda url: fakeredis.FakeAsyncRedis(server=server))

    return here


def ticket(name: str = "s", owner: str = "me", size: int = 10) -> StreamRecord:
    """A ticket whose body has so many bytes."""
    return StreamRecord(name, "chat", b"x" * size, 5, "tiny", owner, "payer", 2**64 - 1, (b"abcd",))
