from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisDown

from baton.errors import SettingsError
from baton.net.discovery import (
    LEASE_SECONDS,
    RedisDirectory,
    StaticDirectory,
    bind_address,
    directory,
    make_run_dir,
    reachable,
)
from baton.net.topology import FLEET, FRONTEND, TOKENIZE
from baton.settings import Settings


@pytest.fixture
def redis() -> fakeredis.FakeRedis:
    return fakeredis.FakeRedis()


@pytest.fixture
def pair(redis: fakeredis.FakeRedis) -> Iterator[tuple[RedisDirectory, RedisDirectory]]:
    settings = Settings(redis_url="redis://x")
    one, two = (RedisDirectory(settings, lambda url: redis) for _ in range(2))
    yield one, two
    one.close()
    two.close()


def test_without_redis_services_meet_in_the_run_directory(run_dir: Path) -> None:
    here = directory(Settings(run_dir=run_dir))
    assert isinstance(here, StaticDirectory)
    assert here.first(FLEET) == f"ipc://{run_dir}/fleet.sock"
    assert bind_address(Settings(run_dir=run_dir), FLEET, "") == here.first(FLEET)
    assert bind_address(Settings(run_dir=run_dir), FLEET, "tcp://*:1") == "tcp://*:1"


def test_a_run_directory_too_deep_for_a_socket_is_refused() -> None:
    with pytest.raises(SettingsError, match="BATON_RUN_DIR"):
        directory(Settings(run_dir=Path("/" + "x" * 120))).find(FLEET)


def test_a_run_directory_that_cannot_be_made_is_refused(run_dir: Path) -> None:
    (run_dir / "file").touch()
    with pytest.raises(SettingsError, match=r"Cannot create --run-dir .*: Not a directory"):
        make_run_dir(run_dir / "file" / "run")


def test_given_addresses_win(pair: tuple[RedisDirectory, RedisDirectory]) -> None:
    settings = Settings(tokenizer_address="tcp://a:1, tcp://b:2")
    assert StaticDirectory(settings).find(TOKENIZE) == ("tcp://a:1", "tcp://b:2")


def test_leases_appear_and_are_withdrawn(
    redis: fakeredis.FakeRedis, pair: tuple[RedisDirectory, RedisDirectory]
) -> None:
    one, two = pair
    assert two.first(FRONTEND) == ""
    one.announce(FRONTEND, "s1", "tcp://10.0.0.1:1")
    two.refresh()
    assert two.find(FRONTEND) == ("tcp://10.0.0.1:1",)
    assert 0 < redis.ttl("baton:frontend:s1") <= LEASE_SECONDS
    one.close()
    assert not redis.exists("baton:frontend:s1")


def test_a_server_that_is_gone_is_left_for_its_successor(
    redis: fakeredis.FakeRedis, pair: tuple[RedisDirectory, RedisDirectory]
) -> None:
    """Not before: a Redis that has restarted is empty, and a busy server renews its lease late."""
    one, two = pair
    one.announce(FRONTEND, "s1", "tcp://10.0.0.1:1")
    two.refresh()
    redis.flushall()
    two.refresh()
    assert two.first(FRONTEND) == "tcp://10.0.0.1:1"
    two.announce(FRONTEND, "s2", "tcp://10.0.0.2:1")
    assert two.find(FRONTEND) == ("tcp://10.0.0.2:1",)


def test_a_redis_that_is_away_changes_nothing(
    redis: fakeredis.FakeRedis,
    pair: tuple[RedisDirectory, RedisDirectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = pair
    one.announce(FRONTEND, "s1", "tcp://10.0.0.1:1")
    two.refresh()

    def down(*_: object, **__: object) -> None:
        raise RedisDown("gone")

    monkeypatch.setattr(redis, "scan_iter", down)
    monkeypatch.setattr(redis, "set", down)
    two.refresh()
    assert two.find(FRONTEND) == ("tcp://10.0.0.1:1",)


def test_a_wildcard_is_announced_under_the_hosts_name() -> None:
    assert reachable("ipc://x") == "ipc://x"
    assert reachable("tcp://*:7").endswith(":7") and "*" not in reachable("tcp://*:7")
