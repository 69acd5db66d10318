from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.protocol import Grant, Pull, Revoke
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.kv_cache import KVCache
from baton_worker.kv_transfer import connection
from baton_worker.kv_transfer.manager import KVTransferManager, host, usable
from baton_worker.kv_transfer.transport import UnusableError
from tests.fakes.page_caches import (
    GRANT,
    LENGTH,
    SOURCE_PAGES,
    TOKEN,
    cache,
    filled,
    tokens,
)


@pytest.fixture
def pair(run_dir: Path) -> Iterator[tuple[KVTransferManager, KVTransferManager, KVCache]]:
    """A relay that has keys and one that wants them, and the cache of the latter."""
    target = cache(4)
    where = {"bind_kv": "tcp://127.0.0.1:*", "trusted_network": True}
    bound = Config(run_dir=run_dir, kv_transports="shm,tcp", **where)  # type: ignore[arg-type]
    one = KVTransferManager(filled(8), Config(run_dir=run_dir, kv_transports="tcp,shm"), "one")
    two = KVTransferManager(target, bound, "two")
    one.start()
    two.start()
    yield one, two, target
    one.close()
    two.close()


def pulled(relay: KVTransferManager) -> str:
    deadline = time.monotonic() + 60
    while not (found := relay.finished()):
        assert relay.busy and time.monotonic() < deadline
        time.sleep(0.005)
    return found[0].reason


def pull(source: KVTransferManager) -> Pull:
    pages = pack(range(10), "I")
    return Pull(1, GRANT.id, source.address, TOKEN, 0, LENGTH, pages, GRANT.epoch)


def test_keys_pass_from_one_worker_to_another(
    pair: tuple[KVTransferManager, KVTransferManager, KVCache],
) -> None:
    one, two, target = pair
    one.take(GRANT)
    two.take(pull(one))
    assert pulled(two) == ""
    for layer in range(2):
        arrived = tokens(target, layer, list(range(10)))
        assert arrived.equal(tokens(filled(8), layer, SOURCE_PAGES))


@pytest.mark.parametrize("how", ["revoke", "reset", "never"])
def test_what_is_not_granted_any_more_does_not_pass(
    pair: tuple[KVTransferManager, KVTransferManager, KVCache],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    one, two, _ = pair
    if how == "never":
        one.take(Grant(1, GRANT.id, TOKEN, pack([999], "I"), 1))
    else:
        one.take(GRANT)
    if how == "revoke":
        one.take(Revoke(1, pack([GRANT.id], "Q")))
    if how == "reset":
        one.reset()
    two.take(pull(one))
    assert pulled(two) == "the source sends nothing"


def test_each_has_an_address_of_its_own(
    pair: tuple[KVTransferManager, KVTransferManager, KVCache],
) -> None:
    one, two, _ = pair
    assert one.address.startswith("ipc://")
    assert two.address.startswith("tcp://127.0.0.1:") and not two.address.endswith("*")


def test_a_wildcard_is_reached_by_the_name_of_the_host(run_dir: Path) -> None:
    anywhere = Config(run_dir=run_dir, bind_kv="tcp://*:*", trusted_network=True)
    relay = KVTransferManager(cache(4), anywhere, "three")
    relay.start()
    assert relay.address.startswith(f"tcp://{socket.gethostname()}:")
    relay.close()


def test_a_pair_takes_what_the_target_prefers(
    pair: tuple[KVTransferManager, KVTransferManager, KVCache],
) -> None:
    one, two, _ = pair
    one.take(GRANT)
    two.take(pull(one))
    while not (found := two.finished()):
        time.sleep(0.005)
    assert (found[0].reason, found[0].transport) == ("", "shm")
    assert found[0].num_bytes == LENGTH * (32 + 128)


def test_who_shares_a_run_directory_is_on_one_host(run_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "seen elsewhere"
    link.symlink_to(run_dir)
    assert host(Config(run_dir=run_dir)) == host(Config(run_dir=link))
    assert host(Config(run_dir=run_dir)) != host(Config(run_dir=tmp_path / "another"))


class Nowhere:
    on_device = False

    def __init__(self, config: Config) -> None:
        raise UnusableError("there is no such device")


@pytest.fixture
def no_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_worker.kv_transfer.shm.Shm", Nowhere)


@pytest.mark.usefixtures("no_shm")
def test_what_cannot_be_used_is_left_out(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert list(usable(Config(run_dir=run_dir, kv_transports="shm,tcp"))) == ["tcp"]
    assert "no KV passes over shm: there is no such device" in caplog.text
    assert "KV passes to other workers over tcp" in caplog.text


@pytest.mark.usefixtures("no_shm")
@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transports": "shm"},
        {"kv_transports": "shm,tcp", "kv_transfer_config": '{"kv_connector": "shm"}'},
    ],
)
def test_what_was_asked_for_and_cannot_be_used_stops_the_worker(
    run_dir: Path, fields: dict[str, str]
) -> None:
    with pytest.raises(SettingsError, match="shm was asked for, but there is no such device"):
        usable(Config(run_dir=run_dir, **fields))  # type: ignore[arg-type]
