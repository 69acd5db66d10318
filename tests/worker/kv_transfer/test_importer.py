"""The target's half against the source's, over real sockets and every transport."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from baton.protocol import Block, Fetch, Message, Missing, Pull, Pulled
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.kv_cache import KVCache
from baton_worker.kv_transfer import connection, exporter
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.kv_transfer.shm import Shm
from baton_worker.kv_transfer.tcp import Tcp
from baton_worker.kv_transfer.transport import Transport
from baton_worker.kv_transfer.wire_format import Extent
from tests.fakes.page_caches import (
    GRANT,
    LENGTH,
    SOURCE_PAGES,
    TOKEN,
    cache,
    filled,
    tokens,
)

Make = Callable[[KVCache], Importer]
PAGE_SIZES = pytest.mark.parametrize("page_size", [8, 4])
"""That of the source, and another one."""


def pull(source: Exporter, pages: list[int], **fields: object) -> Pull:
    given: dict[str, object] = {"token": TOKEN, "start": 0, "end": LENGTH, "source_epoch": 1}
    given |= fields
    return Pull(1, 9, source.address, pages=pack(pages, "I"), **given)  # type: ignore[arg-type]


def pages_of(target: KVCache) -> list[int]:
    return list(reversed(range(target.num_pages)))


def ended(importer: Importer) -> Pulled:
    deadline = time.monotonic() + 60
    while not (found := importer.finished()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not importer.busy
    return found[0]


def assert_arrived(target: KVCache, pages: list[int]) -> None:
    for layer in range(2):
        wanted = tokens(filled(8), layer, SOURCE_PAGES)
        assert torch.equal(tokens(target, layer, pages), wanted)


@pytest.mark.parametrize("page_size", [4, 8, 16])
def test_keys_arrive_bit_for_bit_whatever_the_page_sizes(
    source: Exporter, importer: Make, carried_by: str, page_size: int
) -> None:
    target = cache(page_size)
    pages = pages_of(target)
    source.grant(GRANT)
    halves = importer(target)
    for start, end in ((0, 21), (21, LENGTH)):
        halves.start(pull(source, pages, start=start, end=end))
        found = ended(halves)
        assert (found.reason, found.transport) == ("", carried_by)
    assert_arrived(target, pages)
    assert source.num_connections == 1, "the second pull found the connection of the first"


def test_many_small_blocks_use_every_place_again(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = [Extent(layer, at, at + 1) for at in range(LENGTH) for layer in range(2)]
    monkeypatch.setattr("baton_worker.kv_transfer.page_content.extents", lambda *_: single)
    target = cache(4)
    pages = pages_of(target)
    source.grant(GRANT)
    blocks = importer(target)
    blocks.start(pull(source, pages))
    assert ended(blocks).reason == ""
    assert_arrived(target, pages)


def test_it_touches_no_other_token(source: Exporter, importer: Make) -> None:
    source.grant(GRANT)
    target, untouched = cache(8), cache(8)
    both = importer(target)
    both.start(pull(source, [1, 2, 3, 4, 5], start=3, end=5))
    found = ended(both)
    assert found.num_bytes == 2 * (1 + 4) * 2 * 8 * 2
    for layer in range(2):
        target.layers[layer][1, 3:5] = 0
        assert torch.equal(target.layers[layer], untouched.layers[layer])


def test_it_waits_for_a_grant_that_is_on_its_way(source: Exporter, importer: Make) -> None:
    late = importer(cache(8))
    late.start(pull(source, [0, 1, 2, 3, 4]))
    time.sleep(0.05)
    assert late.finished() == []
    source.grant(GRANT)
    assert ended(late).reason == ""


def test_what_is_not_granted_is_refused(source: Exporter, importer: Make) -> None:
    source.grant(GRANT)
    for wrong, reason in (
        ({"token": b"x" * 16}, "refuses"),
        ({"token": b""}, "refuses"),
        ({"end": LENGTH + 1}, "refuses"),
        ({"end": 1000}, "do not fit"),
        ({"start": -1}, "do not fit"),
        ({"start": 5, "end": 5}, "do not fit"),
        ({"source_epoch": 2}, "another epoch"),
    ):
        target = importer(cache(8))
        target.start(pull(source, [0, 1, 2, 3, 4], **wrong))
        assert reason in ended(target).reason, wrong


@PAGE_SIZES
def test_a_lane_that_is_open_carries_nothing_of_another_epoch(
    source: Exporter, importer: Make, page_size: int
) -> None:
    target = cache(page_size)
    source.grant(GRANT)
    stale = importer(target)
    stale.start(pull(source, pages_of(target)))
    assert ended(stale).reason == ""
    source.grant(msgspec.structs.replace(GRANT, epoch=2))
    stale.start(pull(source, pages_of(target)))
    assert "another epoch" in ended(stale).reason
    assert source.refused


def test_pages_beyond_the_target_are_refused(source: Exporter, importer: Make) -> None:
    source.grant(GRANT)
    target = importer(cache(8))
    target.start(pull(source, [0, 1, 2, 3, 8]))
    assert "do not fit" in ended(target).reason


@PAGE_SIZES
def test_a_late_block_fails_the_pull_and_lands_nowhere(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    put = source._put

    def slowly(*arguments: object) -> Block:
        time.sleep(0.4)
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "_put", slowly)
    source.grant(GRANT)
    target = cache(page_size)
    late = importer(target)
    late.start(pull(source, pages_of(target)))
    assert ended(late).reason == "the source sends nothing"
    before = [layer.clone() for layer in target.layers]
    time.sleep(0.5)
    assert all(map(torch.equal, before, target.layers))


@PAGE_SIZES
def test_a_lost_block_fails_the_pull(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    answer = source._answer

    def lossy(peer: bytes, message: Message) -> Message | None:
        found = answer(peer, message)
        return None if isinstance(message, Fetch) and message.layer == 1 else found

    monkeypatch.setattr(source, "_answer", lossy)
    source.grant(GRANT)
    target = cache(page_size)
    lost = importer(target)
    lost.start(pull(source, pages_of(target)))
    assert ended(lost).reason == "the source sends nothing"


def test_a_revoked_grant_is_unknown(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    source.grant(GRANT)
    source.revoke([9, 10])
    target = importer(cache(8))
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "nothing" in ended(target).reason


def test_a_grant_that_ends_while_its_pages_are_read_gives_no_block(
    source: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.grant(GRANT)
    put = source._put

    def interrupted(*arguments: object) -> Block:
        found = put(*arguments)  # type: ignore[arg-type]
        source.reset()
        return found

    monkeypatch.setattr(source, "_put", interrupted)
    monkeypatch.setitem(source._connections, b"w", _some_lane(source))
    found = source._answer(b"w", Fetch(9, TOKEN, 0, 0, 8, 1))
    assert isinstance(found, Missing) and found.reason == "unknown"


def _some_lane(source: Exporter) -> exporter._Connection:
    [transport] = source._transports.values()
    return exporter._Connection(transport.send(source._size), time.monotonic())


def test_a_source_that_is_gone_fails_the_pull(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    source.stop()
    target = importer(cache(8))
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "nothing" in ended(target).reason


@PAGE_SIZES
def test_a_corrupt_block_fails_the_pull(
    source: Exporter, importer: Make, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    """One bit that is not what was read."""
    put = source._put

    def corrupt(*arguments: object) -> Block:
        sent = put(*arguments)  # type: ignore[arg-type]
        if sent.data:
            return msgspec.structs.replace(sent, data=_flipped(sent.data))
        [there, fetch, _] = arguments
        there.sender.view(fetch.place, 1)[0] ^= 1  # type: ignore[attr-defined]
        return sent

    monkeypatch.setattr(source, "_put", corrupt)
    source.grant(GRANT)
    target = cache(page_size)
    bad = importer(target)
    bad.start(pull(source, pages_of(target)))
    assert ended(bad).reason == "a block is corrupt"
    assert not any(layer.any() for layer in target.layers), "it was not written"


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"size": 8}, "wrong size"),
        ({"dtype": "float32"}, "stores float32"),
        ({"start": 5}, "not asked for"),
        ({"layer": 7}, "not asked for"),
    ],
)
def test_a_block_that_is_not_as_granted_fails_the_pull(
    source: Exporter,
    importer: Make,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, object],
    reason: str,
) -> None:
    put = source._put
    monkeypatch.setattr(source, "_put", lambda *a: msgspec.structs.replace(put(*a), **fields))
    source.grant(GRANT)
    target = importer(cache(8))
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert reason in ended(target).reason


def test_numbers_of_another_kind_fail_the_pull(source: Exporter, importer: Make) -> None:
    source.grant(GRANT)
    target = importer(cache(8, torch.float16))
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "something else" in ended(target).reason


def test_a_transport_that_fails_is_not_used_again_there(
    run_dir: Path, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(run_dir=run_dir)
    both: dict[str, Transport] = {"shm": Shm(config), "tcp": Tcp(config)}
    source = Exporter(PageContent(filled(8)), f"ipc://{run_dir}/pages.sock", both, here)
    source.start()
    source.grant(GRANT)
    target = cache(8)
    second = Importer(PageContent(target), "w", both, here)
    monkeypatch.setattr(connection, "xxh3_64_intdigest", lambda data: 1)
    second.start(pull(source, pages_of(target)))
    failed = ended(second)
    assert (failed.reason, failed.transport) == ("a block is corrupt", "shm")
    monkeypatch.undo()
    second.start(pull(source, pages_of(target)))
    done = ended(second)
    assert (done.reason, done.transport) == ("", "tcp")
    assert_arrived(target, pages_of(target))
    second.close()
    source.stop()
    both["shm"].close()


def test_reset_ends_what_runs(source: Exporter, importer: Make) -> None:
    target = importer(cache(8))
    target.start(pull(source, [0, 1, 2, 3, 4]))
    target.reset()
    assert not target.busy
    assert target.finished() == []
    source.grant(GRANT)
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert ended(target).reason == ""
