from __future__ import annotations

import pytest
from msgspec import structs

from baton.errors import WireError
from baton.net.handshake import (
    BEAT_SECONDS,
    CHECK_SECONDS,
    LOST_SECONDS,
    ClientHandshake,
    PeerTable,
    check_version,
    incarnation,
)
from baton.protocol import PROTOCOL, Beat, Hello, HelloRequest, Message

CLIENT = Hello("worker", "w1", 10, "0")
SERVER = Hello("scheduler", "s", 20, "0")


def test_a_client_says_hello_until_it_is_answered_and_then_beats() -> None:
    handshake = ClientHandshake(CLIENT)
    assert handshake.due(0.0) == CLIENT
    assert handshake.due(BEAT_SECONDS / 2) is None
    assert handshake.due(BEAT_SECONDS) == CLIENT
    assert handshake.receive(SERVER, 0.2) is True
    assert handshake.receive(SERVER, 0.2) is False
    assert handshake.due(0.5, progress=3, busy=True) == Beat("w1", 10, 3, True)


def test_a_restarted_server_is_noticed_and_greeted_anew() -> None:
    handshake = ClientHandshake(CLIENT)
    handshake.receive(SERVER, 0.0)
    handshake.receive(HelloRequest(21), 1.0)
    assert handshake.server is None
    assert handshake.due(1.0) == CLIENT
    assert handshake.receive(Hello("scheduler", "s", 21, "0"), 1.1) is True


def test_a_server_that_only_forgot_us_is_asked_again_too() -> None:
    handshake = ClientHandshake(CLIENT)
    handshake.receive(SERVER, 0.0)
    handshake.receive(HelloRequest(20), 0.1)
    assert handshake.server is not None, "a beat that crossed our Hello is no news"
    handshake.receive(HelloRequest(20), 2.0)
    assert handshake.server is None
    assert handshake.receive(SERVER, 2.1) is True


def seconds(start: float, end: float) -> list[float]:
    """Moments between the two, as a process looks that is not stopped."""
    return [start + 0.1 * n for n in range(1, round((end - start) / 0.1) + 1)]


def test_silence_is_loss_and_is_told_once() -> None:
    handshake = ClientHandshake(CLIENT)
    handshake.receive(SERVER, 0.0)
    assert not any(handshake.lost(now) for now in seconds(0.0, LOST_SECONDS - 0.1))
    handshake.receive(Beat("s", 20), 1.0)
    assert not any(handshake.lost(now) for now in seconds(LOST_SECONDS, LOST_SECONDS + 0.9))
    assert [handshake.lost(now) for now in seconds(1.9, 2.3)].count(True) == 1
    assert handshake.server is None


def test_who_was_stopped_does_not_blame_the_server_for_the_silence() -> None:
    handshake = ClientHandshake(CLIENT)
    handshake.receive(SERVER, 10.0)
    assert not handshake.lost(10.1)
    assert not handshake.lost(60.0)
    assert any(handshake.lost(now) for now in seconds(60.0, 60.0 + LOST_SECONDS))


def test_silence_is_counted_from_the_last_word_and_only_while_somebody_listens() -> None:
    handshake = ClientHandshake(CLIENT, alone=True)
    assert handshake.silence(99.0) == 0.0, "nobody has ever answered"
    handshake.receive(SERVER, 1.0)
    for tick in range(10, 21):
        handshake.lost(tick / 10)
    assert handshake.silence(2.1) == pytest.approx(1.1)
    assert handshake.silence(12.0) == pytest.approx(1.0 + CHECK_SECONDS), "it was stopped meanwhile"
    handshake.lost(2.2)
    handshake.receive(Beat("s", 20), 2.2)
    assert handshake.silence(2.25) == pytest.approx(0.05)


def test_who_does_not_know_what_was_lost_is_a_new_client() -> None:
    handshake = ClientHandshake(CLIENT)
    handshake.receive(SERVER, 0.0)
    assert handshake.due(0.1) == Beat("w1", 10)
    handshake.renew()
    fresh = handshake.due(0.11)
    assert isinstance(fresh, Hello)
    assert fresh.name == "w1" and fresh.incarnation != 10
    assert handshake.receive(SERVER, 0.2) is True


def test_the_table_knows_strangers_and_replacements() -> None:
    table = PeerTable(SERVER)
    assert table.beat(Beat("w1", 10), 0.0) == HelloRequest(20)
    assert table.register(b"a", CLIENT, 0.0) is None
    assert table.register(b"a2", CLIENT, 0.0) is None
    assert table.peers["w1"].identity == b"a2"
    assert table.beat(Beat("w1", 10, 5), 0.1) == Beat("s", 20)
    old = table.register(b"b", Hello("worker", "w1", 11, "0"), 0.2)
    assert old is not None and old.hello == CLIENT
    assert table.beat(Beat("w1", 10), 0.3) == HelloRequest(20)
    expired = [peer for now in seconds(0.2, 3.0) for peer in table.expire(now)]
    assert [peer.hello.incarnation for peer in expired] == [11]
    assert table.expire(6.0) == []
    table.register(b"c", Hello("worker", "w1", 12, "0"), 6.0)
    table.peers["w1"].max_silence = 4.0
    assert not any(table.expire(now) for now in seconds(6.0, 9.9))
    assert any(table.expire(now) for now in seconds(9.9, 10.5))


def test_a_server_that_was_stopped_blames_nobody() -> None:
    table = PeerTable(SERVER)
    table.register(b"a", CLIENT, 0.0)
    assert not table.expire(0.1)
    assert not table.expire(30.0)
    assert not table.peers["w1"].hung(30.0, 5.0)
    assert any(table.expire(now) for now in seconds(30.0, 30.0 + LOST_SECONDS))


def test_busy_without_progress_is_a_hang() -> None:
    table = PeerTable(SERVER)
    table.register(b"a", CLIENT, 0.0)
    peer = table.peers["w1"]
    peer.beat(Beat("w1", 10, progress=1, busy=True), 1.0)
    peer.beat(Beat("w1", 10, progress=1, busy=True), 7.0)
    assert peer.hung(7.0, 5.0)
    peer.beat(Beat("w1", 10, progress=2, busy=True), 7.1)
    assert not peer.hung(7.1, 5.0)
    peer.beat(Beat("w1", 10, progress=2, busy=False), 20.0)
    assert not peer.hung(20.0, 5.0)


def test_a_version_mismatch_names_the_side_to_upgrade() -> None:
    check_version(CLIENT)
    with pytest.raises(WireError, match="upgrade w1"):
        check_version(Hello("worker", "w1", 1, "0", protocol=PROTOCOL - 1))
    with pytest.raises(WireError, match="upgrade this side"):
        check_version(Hello("worker", "w1", 1, "9", protocol=PROTOCOL + 1))


def test_incarnations_differ() -> None:
    assert len({incarnation() for _ in range(100)}) == 100


def test_a_name_is_taken_while_another_process_with_it_lives() -> None:
    table, sent = PeerTable(SERVER), list[bytes]()

    def reach(identity: bytes, message: Message) -> bool:
        sent.append(identity)
        return identity != b"dead"

    second = structs.replace(CLIENT, incarnation=99)
    assert not table.is_name_taken(b"one", CLIENT, 0.0, reach)
    table.register(b"one", CLIENT, 0.0)
    assert not table.is_name_taken(b"one", second, 0.1, reach), "the same process begins anew"
    assert not table.is_name_taken(b"two", CLIENT, 0.1, reach), (
        "the same process over a new connection"
    )
    assert table.is_name_taken(b"two", second, 0.1, reach)
    assert not table.is_name_taken(b"two", second, LOST_SECONDS, reach), (
        "it was not heard of for long"
    )
    table.register(b"dead", CLIENT, 1.0)
    assert not table.is_name_taken(b"two", second, 1.1, reach) and sent == [b"one", b"dead"]
