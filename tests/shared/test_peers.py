from __future__ import annotations

import pytest

from baton.errors import WireError
from baton.peers import BEAT_SECONDS, LOST_SECONDS, Greeting, Roster, check_version, incarnation
from baton.protocol import PROTOCOL, Beat, Hello, Who

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
    greeting.heard(Who(21), 1.0)
    assert greeting.server is None
    assert greeting.due(1.0) == CLIENT
    assert greeting.heard(Hello("scheduler", "s", 21, "0"), 1.1) is True


def test_a_server_that_only_forgot_us_is_asked_again_too() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    greeting.heard(Who(20), 0.1)
    assert greeting.server is not None, "a beat that crossed our Hello is no news"
    greeting.heard(Who(20), 2.0)
    assert greeting.server is None
    assert greeting.heard(SERVER, 2.1) is True


def test_silence_is_loss_and_is_told_once() -> None:
    greeting = Greeting(CLIENT)
    greeting.heard(SERVER, 0.0)
    assert not greeting.lost(LOST_SECONDS / 2)
    greeting.heard(Beat("s", 20), 1.0)
    assert not greeting.lost(LOST_SECONDS)
    assert greeting.lost(LOST_SECONDS + 1.1)
    assert not greeting.lost(LOST_SECONDS + 1.2)


def test_the_roster_knows_strangers_and_replacements() -> None:
    roster = Roster(SERVER)
    assert roster.beat(Beat("w1", 10), 0.0) == Who(20)
    assert roster.greet(b"a", CLIENT, 0.0) is None
    assert roster.greet(b"a2", CLIENT, 0.0) is None
    assert roster.peers["w1"].identity == b"a2"
    assert roster.beat(Beat("w1", 10, 5), 0.1) == Beat("s", 20)
    old = roster.greet(b"b", Hello("worker", "w1", 11, "0"), 0.2)
    assert old is not None and old.hello == CLIENT
    assert roster.beat(Beat("w1", 10), 0.3) == Who(20)
    assert [p.hello.incarnation for p in roster.expire(5.0)] == [11]
    assert roster.expire(6.0) == []


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
