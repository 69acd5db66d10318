"""Order of waiting sequences."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.protocol import BACKGROUND, Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.queueing.policies import ORDERS
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.sequence import Sequence, sequence


def arrive(number: int, order: str = "fcfs", priority: int = 0, length: int = 3) -> Sequence:
    submit = Submit(number, "r", pack(range(length)), Sampling(4), priority=priority)
    return sequence("g", submit, "", number, 0.0, ORDERS.load(order)().key)


@pytest.mark.row("F13.02")
def test_first_come_first_served() -> None:
    queue = Queue()
    for number in (1, 2, 3):
        queue.push(arrive(number, priority=-number))
    assert [s.arrival for s in queue] == [1, 2, 3]


@pytest.mark.row("F13.02")
def test_one_that_comes_back_is_in_front_of_all_later_ones() -> None:
    queue = Queue()
    for number in (2, 4, 5):
        queue.push(arrive(number))
    queue.push(arrive(3))
    queue.push(arrive(1))
    assert [s.arrival for s in queue] == [1, 2, 3, 4, 5]


def test_lower_priority_values_come_first() -> None:
    queue = Queue()
    for number, value in ((1, 5), (2, 0), (3, 5), (4, -1)):
        queue.push(arrive(number, "priority", value))
    assert [s.arrival for s in queue] == [4, 2, 1, 3]


@pytest.mark.parametrize("order", ORDERS.names())
def test_the_background_is_behind_everything_under_every_policy(order: str) -> None:
    queue = ORDERS.load(order)()
    waiting = [arrive(n, order, BACKGROUND if n in (1, 3) else 0) for n in (1, 2, 3, 4)]
    for one in waiting:
        queue.push(one)
    ran = []
    while (head := queue.head) is not None:
        queue.remove(head)
        queue.started(head)
        ran.append(head)
    assert [one.arrival for one in ran] == [2, 4, 1, 3]
    assert queue.outranks(waiting[3], waiting[0]) and not queue.outranks(waiting[2], waiting[0])
    # One that was preempted stays behind what comes later.
    queue.push(waiting[0])
    queue.push(arrive(5, order))
    assert queue.head is not None and queue.head.arrival == 5
    assert queue.ahead(waiting[2])[0] == 2


def test_tokens_that_wait_are_counted() -> None:
    queue, first, second = Queue(), arrive(1, length=3), arrive(2, length=5)
    queue.push(first)
    queue.push(second)
    queue.remove(first)
    assert (queue.num_tokens, len(queue), queue.head) == (5, 1, second)
    queue.remove(second)
    assert (queue.num_tokens, len(queue), queue.head) == (0, 0, None)


def test_an_unknown_order_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"fcfs, priority.*Did you mean 'fcfs'"):
        ORDERS.check("fcsf")


@pytest.mark.parametrize(("priority", "ahead"), [(-2, (0, 0)), (0, (2, 7)), (9, (3, 12))])
def test_who_is_ahead_of_one_that_arrives(priority: int, ahead: tuple[int, int]) -> None:
    queue = ORDERS.load("priority")()
    for number, (value, length) in enumerate([(5, 5), (-1, 3), (0, 4)]):
        queue.push(arrive(number, "priority", value, length))
    assert queue.ahead(arrive(9, "priority", priority)) == ahead


def test_one_that_waits_for_its_leader_is_not_the_head() -> None:
    queue, leader = Queue(), arrive(1)
    follower, other = arrive(2), arrive(3)
    follower.follow(leader)
    assert follower.leader is leader and follower.waits
    queue.push(follower)
    assert queue.head is None
    queue.push(other)
    assert queue.head is other
    leader.prompt_cached = True
    assert queue.head is follower
