"""Two workers of two ranks each: every rank pulls from the same rank, or the pull fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from baton.errors import SettingsError
from baton.protocol import Pull, Pulled
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.executor.commands import (
    Forget,
    Pipe,
    Reader,
    Take,
)
from baton_worker.executor.kv_transfer import FollowerKVTransfer, LeaderKVTransfer, of_rank
from baton_worker.executor.reports import Reports
from baton_worker.kv_cache import KVCache
from baton_worker.kv_transfer.manager import KVTransferManager
from baton_worker.kv_transfer.wire_format import block_bytes, extents
from tests.fakes.page_caches import (
    GRANT,
    LENGTH,
    SOURCE_PAGES,
    TOKEN,
    cache,
    filled,
    tokens,
)


@dataclass
class Side:
    """A worker of two ranks, both in this process; the commands go over a pipe as ever."""

    relay: LeaderKVTransfer
    first: KVTransferManager
    """The leader's own."""
    follower: FollowerKVTransfer
    caches: tuple[KVCache, KVCache]


def follow(commands: Reader, relay: FollowerKVTransfer) -> None:
    """What a follower does with commands that concern its relay."""
    while isinstance(command := commands.next(), Take | Forget):
        relay.reset() if isinstance(command, Forget) else relay.take(command.message)


def side(stack: ExitStack, run_dir: Path, name: str, caches: tuple[KVCache, KVCache]) -> Side:
    """Two relays, and pipes between them."""

    config = Config(
        run_dir=run_dir, kv_transports="tcp", bind_kv="tcp://127.0.0.1:*", trusted_network=True
    )
    (commands, ordering), (reports, reporting) = os.pipe(), os.pipe()
    writing, reading = os.fdopen(ordering, "wb"), os.fdopen(commands, "rb")
    told, telling = os.fdopen(reports, "rb"), os.fdopen(reporting, "wb")
    own = [KVTransferManager(pages, config, f"{name}/{rank}") for rank, pages in enumerate(caches)]
    follower = FollowerKVTransfer(own[1], 1, telling)
    follower.start()
    led = LeaderKVTransfer(own[0], Pipe([writing]), [Reports(told)])
    led.start()
    obeying = threading.Thread(target=follow, args=(Reader(reading), follower))
    obeying.start()
    for file in (told, reading):
        stack.callback(file.close)
    for end in (telling.close, follower.close, led.close, obeying.join, writing.close):
        stack.callback(end)
    return Side(led, own[0], follower, caches)


@pytest.fixture
def sides(run_dir: Path) -> Iterator[tuple[Side, Side]]:
    """A worker that has keys, other ones on its second rank, and one that wants them."""
    second = filled(8)
    for layer in second.layers:
        layer.neg_()
    with ExitStack() as stack:
        source = side(stack, run_dir, "one", (filled(8), second))
        yield source, side(stack, run_dir, "two", (cache(4), cache(4)))


def pull(address: str, number: int = GRANT.id) -> Pull:
    return Pull(1, number, address, TOKEN, 0, LENGTH, pack(range(10), "I"), GRANT.epoch)


def ended(relay: LeaderKVTransfer) -> Pulled:
    deadline = time.monotonic() + 60
    while not (found := relay.finished()):
        assert relay.busy and time.monotonic() < deadline
        time.sleep(0.005)
    (pulled,) = found
    assert not relay.busy
    return pulled


def test_every_rank_gets_the_keys_of_the_same_rank(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.relay.take(GRANT)
    target.relay.take(pull(source.relay.address))
    pulled = ended(target.relay)
    assert (pulled.epoch, pulled.id, pulled.reason) == (1, GRANT.id, "")
    for mine, theirs in zip(target.caches, source.caches, strict=True):
        for layer in range(2):
            arrived = tokens(mine, layer, list(range(10)))
            assert arrived.equal(tokens(theirs, layer, SOURCE_PAGES))
    first, second = (tokens(pages, 0, list(range(10))) for pages in target.caches)
    assert first.equal(-second) and bool(first.any())
    mine = target.caches[0]
    assert pulled.num_bytes == 2 * sum(block_bytes(mine, e) for e in extents(mine, 0, LENGTH))


def test_one_rank_without_a_grant_fails_the_pull(sides: tuple[Side, Side]) -> None:
    source, target = sides
    source.first.take(GRANT)
    source.follower.take(msgspec.structs.replace(GRANT, token=bytes(16)))
    target.relay.take(pull(source.relay.address))
    assert ended(target.relay).reason == "the source refuses"


def test_a_worker_of_another_size_gives_nothing_and_says_why(sides: tuple[Side, Side]) -> None:
    source, target = sides
    assert target.relay.layout == source.relay.layout and target.relay.layout.endswith("/2 ranks")
    target.relay.take(pull(source.relay.address.split(",")[0]))
    assert ended(target.relay).reason == "the source has 1 ranks and this worker 2"


def test_a_stage_says_that_it_advances_while_the_leader_waits(sides: tuple[Side, Side]) -> None:
    source, _ = sides
    layers, deadline = 7, time.monotonic() + 30
    source.follower.watch(lambda: layers)
    for reports in (1, 2):
        while source.relay.progress < reports:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        layers += 1


def test_what_was_forgotten_is_not_told(sides: tuple[Side, Side]) -> None:
    source, target = sides
    target.relay.take(pull(source.relay.address))  # It waits for its grant, and never ends.
    target.relay.reset()
    assert not target.relay.busy and target.relay.finished() == []
    source.relay.take(GRANT)
    target.relay.take(msgspec.structs.replace(pull(source.relay.address), epoch=2))
    assert ended(target.relay).epoch == 2


def test_every_rank_has_an_address_of_its_own() -> None:
    config = Config(tensor_parallel_size=2, bind_kv="tcp://*:1,tcp://*:2")
    assert of_rank(config, 1).bind_kv == "tcp://*:2"
    assert of_rank(config, 0).advertise_kv == ""
    with pytest.raises(SettingsError, match=r"--advertise-kv tcp://a:1: 2 ranks .* 2 addresses"):
        of_rank(Config(tensor_parallel_size=2, advertise_kv="tcp://a:1"), 0)
