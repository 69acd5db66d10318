from __future__ import annotations

import pytest
from msgspec import structs

from baton.errors import WireError
from baton.net.handshake import (
    BEAT_SECONDS,
    LOOK_SECONDS,
    LOST_SECONDS,
    Greeting,
    Roster,
    check_version,
    incarnation,
)
from baton.protocol import PROTOCOL, Beat, Hello, HelloRequest, Message

CLIENT = Hello("worker", "w1", 10, "0")
SERVER = Hello("scheduler", "s", 20, "0")


def test_a_client_says_hello_until_it_is_answered_and_then_beats() -> None:
    greeting = Greeting(CLIENT)
    assert greeting.due(0.0) == CLIENT
    assert greeting.due(BEAT_SECONDS / 2) is None
    assert greeting.due(BEAT_SECONDS) == CLIENT
    assert greeting.heard(SERVER, 0.2) is True
    assert greeting.heard(SERVER, 0.2) is False
    assert greeting.due(0.5, progress=3, busy=True) == Beat("w1", 10, 3, True)


def test_a_restarted_server_is_noticed_and_greeted_anew() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    greeting.heard(HelloRequest(21), 1.0)
    assert greeting.server is None
    assert greeting.due(1.0) == CLIENT
    assert greeting.heard(Hello("scheduler", "s", 21, "0"), 1.1) is True


def test_a_server_that_only_forgot_us_is_asked_again_too() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    greeting.heard(HelloRequest(20), 0.1)
    assert greeting.server is not None, "a beat that crossed our Hello is no news"
    greeting.heard(HelloRequest(20), 2.0)
    assert greeting.server is None
    assert greeting.heard(SERVER, 2.1) is True


def seconds(start: float, end: float) -> list[float]:
    """Moments between the two, as a process looks that is not stopped."""
    return [start + 0.1 * n for n in range(1, round((end - start) / 0.1) + 1)]


def test_silence_is_loss_and_is_told_once() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    assert not any(greeting.lost(now) for now in seconds(0.0, LOST_SECONDS - 0.1))
    greeting.heard(Beat("s", 20), 1.0)
    assert not any(greeting.lost(now) for now in seconds(LOST_SECONDS, LOST_SECONDS + 0.9))
    assert [greeting.lost(now) for now in seconds(1.9, 2.3)].count(True) == 1
    assert greeting.server is None


def test_who_was_stopped_does_not_blame_the_server_for_the_silence() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 10.0)
    assert not greeting.lost(10.1)
    assert not greeting.lost(60.0)
    assert any(greeting.lost(now) for now in seconds(60.0, 60.0 + LOST_SECONDS))


def test_silence_is_counted_from_the_last_word_and_only_while_somebody_listens() -> None:
    greeting = Greeting(CLIENT, alone=True)
    assert greeting.silence(99.0) == 0.0, "nobody has ever answered"
    greeting.heard(SERVER, 1.0)
    for tick in range(10, 21):
        greeting.lost(tick / 10)
    assert greeting.silence(2.1) == pytest.approx(1.1)
    assert greeting.silence(12.0) == pytest.approx(1.0 + LOOK_SECONDS), "it was stopped meanwhile"
    greeting.lost(2.2)
    greeting.heard(Beat("s", 20), 2.2)
    assert greeting.silence(2.25) == pytest.approx(0.05)


def test_who_does_not_know_what_was_lost_is_a_new_client() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    assert greeting.due(0.1) == Beat("w1", 10)
    greeting.renew()
    fresh = greeting.due(0.11)
    assert isinstance(fresh, Hello)
    assert fresh.name == "w1" and fresh.incarnation != 10
    assert greeting.heard(SERVER, 0.2) is True


def test_the_roster_knows_strangers_and_replacements() -> None:
    roster = Roster(SERVER)
    assert roster.beat(Beat("w1", 10), 0.0) == HelloRequest(20)
    assert roster.greet(b"a", CLIENT, 0.0) is None
    assert roster.greet(b"a2", CLIENT, 0.0) is None
    assert roster.peers["w1"].identity == b"a2"
    assert roster.beat(Beat("w1", 10, 5), 0.1) == Beat("s", 20)
    old = roster.greet(b"b", Hello("worker", "w1", 11, "0"), 0.2)
    assert old is not None and old.hello == CLIENT
    assert roster.beat(Beat("w1", 10), 0.3) == HelloRequest(20)
    gone = [peer for now in seconds(0.2, 3.0) for peer in roster.expire(now)]
    assert [peer.hello.incarnation for peer in gone] == [11]
    assert roster.expire(6.0) == []
    roster.greet(b"c", Hello("worker", "w1", 12, "0"), 6.0)
    roster.peers["w1"].patience = 4.0
    assert not any(roster.expire(now) for now in seconds(6.0, 9.9))
    assert any(roster.expire(now) for now in seconds(9.9, 10.5))


def test_a_server_that_was_stopped_blames_nobody() -> None:
    roster = Roster(SERVER)
    roster.greet(b"a", CLIENT, 0.0)
    assert not roster.expire(0.1)
    assert not roster.expire(30.0)
    assert not roster.peers["w1"].hung(30.0, 5.0)
    assert any(roster.expire(now) for now in seconds(30.0, 30.0 + LOST_SECONDS))


def test_busy_without_progress_is_a_hang() -> None:
    roster = Roster(SERVER)
    roster.greet(b"a", CLIENT, 0.0)
    peer = roster.peers["w1"]
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
    roster, sent = Roster(SERVER), list[bytes]()

    def reach(identity: bytes, message: Message) -> bool:
        sent.append(identity)
        return identity != b"dead"

    second = structs.replace(CLIENT, incarnation=99)
    assert not roster.taken(b"one", CLIENT, 0.0, reach)
    roster.greet(b"one", CLIENT, 0.0)
    assert not roster.taken(b"one", second, 0.1, reach), "the same process begins anew"
    assert not roster.taken(b"two", CLIENT, 0.1, reach), "the same process over a new connection"
    assert roster.taken(b"two", second, 0.1, reach)
    assert not roster.taken(b"two", second, LOST_SECONDS, reach), "it was not heard of for long"
    roster.greet(b"dead", CLIENT, 1.0)
    assert not roster.taken(b"two", second, 1.1, reach) and sent == [b"one", b"dead"]
