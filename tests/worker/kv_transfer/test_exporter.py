from __future__ import annotations

from itertools import product

import msgspec
import pytest

from baton.errors import SettingsError
from baton.protocol import Close, Fetch, Grant, Missing, Offer, Open, Opened
from baton.protocol.token_columns import pack
from baton_worker.kv_transfer import exporter
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.transport import Transport, UnusableError
from baton_worker.kv_transfer.wire_format import layout
from tests.fakes.page_caches import GRANT, TOKEN, cache


def request(here: str, *names: str) -> Open:
    offers = tuple(Offer(name, "host" if name == "shm" else "network") for name in names)
    return Open(9, 1, TOKEN, offers, here, layout(cache(8)))


def opened(source: Exporter, request: Open, peer: bytes = b"w") -> Opened:
    answer = source._answer(peer, request)
    assert isinstance(answer, Opened)
    return answer


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": b"short"},
        {"length": 0},
        {"length": 41},
        {"pages": pack([0, 8], "I")},
        {"pages": b""},
    ],
)
def test_a_grant_that_does_not_fit_is_refused(source: Exporter, wrong: dict[str, object]) -> None:
    fields = {"token": TOKEN, "pages": pack([0, 1], "I"), "length": 9} | wrong
    with pytest.raises(SettingsError):
        source.grant(Grant(1, 9, **fields))  # type: ignore[arg-type]


def test_no_index_of_a_stranger_reads_anything(
    source: Exporter, here: str, carried_by: str
) -> None:
    source.grant(GRANT)
    assert opened(source, request(here, carried_by)).transport == carried_by
    bounds = [(0, 1), (-1, 5), (0, 2**40), (5, 5), (36, 38)]
    for count, (layer, chosen) in enumerate(product([-1, 2, 2**31], bounds), start=1):
        answer = source._answer(b"w", Fetch(9, TOKEN, layer, *chosen, 1))
        assert isinstance(answer, Missing), (layer, chosen)
        assert answer.reason == "refused"
        assert source.refused == count


@pytest.mark.parametrize("place", [-1, exporter.PLACES, 2**40])
def test_no_place_beyond_the_lane_is_written(
    source: Exporter, here: str, carried_by: str, place: int
) -> None:
    source.grant(GRANT)
    opened(source, request(here, carried_by))
    answer = source._answer(b"w", Fetch(9, TOKEN, 0, 0, 8, 1, place))
    assert isinstance(answer, Missing) and answer.reason == "refused"


def test_there_is_no_block_without_a_lane(source: Exporter) -> None:
    source.grant(GRANT)
    answer = source._answer(b"w", Fetch(9, TOKEN, 0, 0, 8, 1))
    assert isinstance(answer, Missing) and answer.reason == "refused"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": 8}, "unknown"),
        ({"epoch": 2}, "stale"),
        ({"token": b"x" * 16}, "refused"),
        ({"layout": "float32x8"}, "its pages hold something else"),
        ({"offers": ()}, "no transport in common on one host"),
    ],
)
def test_only_a_grant_opens_a_lane(
    source: Exporter, here: str, carried_by: str, fields: dict[str, object], reason: str
) -> None:
    source.grant(GRANT)
    outstanding = msgspec.structs.replace(request(here, carried_by), **fields)
    answer = opened(source, outstanding)
    assert answer.reason.startswith(reason) and not answer.transport
    assert not source.num_connections


@pytest.mark.parametrize("carried_by", ["shm"], indirect=False)
def test_memory_of_one_host_is_not_offered_to_another(source: Exporter) -> None:
    source.grant(GRANT)
    answer = opened(source, request("elsewhere", "shm", "tcp"))
    assert answer.reason == (
        "no transport in common on two hosts: the source has shm, the target shm, tcp"
    )


def test_lanes_end_when_they_are_closed_or_nobody_uses_them(
    source: Exporter, here: str, carried_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.grant(GRANT)
    for peer in (b"a", b"b", b"a"):
        opened(source, request(here, carried_by), peer)
    assert source.num_connections == 2
    source._answer(b"a", Close())
    source._answer(b"nobody", Close())
    assert source.num_connections == 1
    monkeypatch.setattr(exporter, "_MAX_IDLE_SECONDS", -1.0)
    source._poll_connections()
    assert not source.num_connections


def test_there_is_an_end_to_lanes(
    source: Exporter, here: str, carried_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_MOST_CONNECTIONS", 1)
    source.grant(GRANT)
    assert not opened(source, request(here, carried_by), b"a").reason
    assert opened(source, request(here, carried_by), b"b").reason == "it has 1 connections already"


@pytest.mark.parametrize("carried_by", ["tcp"], indirect=False)
def test_what_cannot_be_used_after_all_is_passed_over(
    source: Exporter, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        reach = "network"

        def send(self, size: object) -> None:
            raise UnusableError("no such device")

    broken: Transport = Broken()  # type: ignore[assignment]
    monkeypatch.setitem(source._transports, "nixl", broken)
    monkeypatch.setitem(source._offers, "nixl", Offer("nixl", "network"))
    source.grant(GRANT)
    assert opened(source, request(here, "nixl", "tcp")).transport == "tcp"
    assert "nixl" not in source._offers
