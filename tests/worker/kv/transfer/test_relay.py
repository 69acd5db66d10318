from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.protocol import Grant, Pull, Revoke
from baton.tokens import pack
from baton_worker.config import Config
from baton_worker.kernels.pages import CODES
from baton_worker.kv import KVCache
from baton_worker.kv.transfer import Relay, importer
from baton_worker.kv.transfer.relay import layout
from tests.fakes.pages import GRANT, LENGTH, SOURCE_PAGES, TOKEN, cache, filled, tokens


@pytest.fixture
def pair(run_dir: Path) -> Iterator[tuple[Relay, Relay, KVCache]]:
    """A relay that has keys and one that wants them, and the cache of the latter."""
    target = cache(4)
    bound = Config(run_dir=run_dir, bind_pages="tcp://127.0.0.1:*")
    one = Relay(filled(8), Config(run_dir=run_dir), "one")
    two = Relay(target, bound, "two")
    one.start()
    two.start()
    yield one, two, target
    one.close()
    two.close()


def pulled(relay: Relay) -> str:
    deadline = time.monotonic() + 30
    while not (found := relay.finished()):
        assert relay.busy and time.monotonic() < deadline
        time.sleep(0.005)
    return found[0].reason


def pull(source: Relay) -> Pull:
    pages = pack(range(10), "I")
    return Pull(1, GRANT.id, source.address, TOKEN, 0, LENGTH, pages)


def test_keys_pass_from_one_worker_to_another(pair: tuple[Relay, Relay, KVCache]) -> None:
    one, two, target = pair
    one.take(GRANT)
    two.take(pull(one))
    assert pulled(two) == ""
    for layer in range(2):
        arrived = tokens(target, layer, list(range(10)))
        assert arrived.equal(tokens(filled(8), layer, SOURCE_PAGES))


@pytest.mark.parametrize("how", ["revoke", "reset", "never"])
def test_what_is_not_granted_any_more_does_not_pass(
    pair: tuple[Relay, Relay, KVCache], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(importer, "_PATIENCE_SECONDS", 0.1)
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


def test_each_has_an_address_of_its_own(pair: tuple[Relay, Relay, KVCache]) -> None:
    one, two, _ = pair
    assert one.address.startswith("ipc://")
    assert two.address.startswith("tcp://127.0.0.1:") and not two.address.endswith("*")


def test_a_wildcard_is_reached_by_the_name_of_the_host(run_dir: Path) -> None:
    anywhere = Config(run_dir=run_dir, bind_pages="tcp://*:*", trusted_network=True)
    relay = Relay(cache(4), anywhere, "three")
    relay.start()
    assert relay.address.startswith(f"tcp://{socket.gethostname()}:")
    relay.close()


def test_a_layout_knows_nothing_of_page_sizes() -> None:
    assert layout(cache(4)) == layout(cache(16)) == "bfloat16x32,bfloat16x128"


def test_two_kinds_of_codes_are_two_layouts() -> None:
    layouts = [layout(cache(4, codes=codes)) for codes in (None, *CODES.values())]
    assert layouts[1:] == ["int8x24,int8x96", "fp8x24,fp8x96"]
