"""Fixtures that run a test on every journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from baton_gateway.config import Config
from baton_gateway.durable.journal import Journal, StreamRecord
from baton_gateway.durable.redis import RedisJournal
from baton_gateway.durable.sqlite import SqliteJournal


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


def ticket(name: str = "s", owner: str = "me", size: int = 10) -> StreamRecord:
    """A ticket whose body has so many bytes."""
    return StreamRecord(name, "chat", b"x" * size, 5, "tiny", owner, "payer", 2**64 - 1, (b"abcd",))
