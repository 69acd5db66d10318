"""Fair queueing: the next tenant to be served, and the resulting shares."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.queueing import fair
from baton_scheduler.queueing.fair import Fair
from baton_scheduler.queueing.policies import ORDERS
from baton_scheduler.sequence import Sequence, sequence
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Request, World


@dataclass
class Line:
    """A fair queue and its arrivals."""

    queue: Fair
    number: int = 0
    names: dict[int, str] = field(default_factory=dict)

    def arrive(self, tenant: str, length: int = 10) -> Sequence:
        self.number += 1
        self.names[self.number] = tenant
        submit = Submit(self.number, "r", pack([1] * length), Sampling(9), tenant=tenant)
        new = sequence("g", submit, "", self.number, 0.0, self.queue.key)
        self.queue.push(new)
        return new

    def start(self) -> str:
        head = self.queue.head
        assert head is not None
        self.queue.remove(head)
        self.queue.started(head)
        self.queue.charge(head, head.num_tokens)
        return head.submit.tenant


def test_turns_follow_the_weights() -> None:
    line = Line(Fair({"b": 2.0, "c": 4.0}))
    for tenant in "abc":
        for _ in range(70):
            line.arrive(tenant)
    turns = [line.start() for _ in range(70)]
    assert [turns.count(tenant) for tenant in "abc"] == [10, 20, 40]


def test_a_tenants_own_requests_stay_in_order() -> None:
    line = Line(Fair())
    for tenant in "aabab":
        line.arrive(tenant)
    started = []
    while (head := line.queue.head) is not None:
        started.append(head.arrival)
        line.start()
    assert sorted(started, key=lambda n: (line.names[n], n)) == [1, 2, 4, 3, 5]
    assert [n for n in started if line.names[n] == "a"] == [1, 2, 4]


def test_what_was_sampled_is_charged_too() -> None:
    line = Line(Fair())
    first, _ = line.arrive("a"), line.arrive("b")
    line.arrive("a"), line.arrive("b")
    assert [line.start(), line.start()] == ["a", "b"]
    line.queue.sampled(np.full(3, first.billed_tenant))
    assert line.start() == "b"


def test_a_pause_saves_nothing_up() -> None:
    line = Line(Fair())
    for _ in range(20):
        line.arrive("busy")
    for _ in range(10):
        line.start()
    for _ in range(10):
        line.arrive("late")
    turns = [line.start() for _ in range(10)]
    assert turns.count("late") == 5


def test_one_that_has_begun_is_in_front_of_everybody() -> None:
    line = Line(Fair())
    first = line.arrive("a", length=1000)
    line.start()
    line.arrive("b")
    line.queue.push(first)
    assert line.queue.head is first and len(line.queue) == 2
    assert line.queue.num_tokens == 1010
    line.queue.remove(first)
    assert line.start() == "b" and len(line.queue) == 0


def test_forgotten_accounts_are_those_that_are_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "_MOST_ACCOUNTS", 3)
    line = Line(Fair())
    for length in (5, 500):
        line.arrive(f"t{length}", length)
        line.start()
    for tenant in "xy":
        line.arrive(tenant, 1)
    # Of t5 and t500, the one with the lower counter is gone; the other still has its debt.
    line.arrive("t500", 1), line.arrive("t5", 1)
    assert [line.start() for _ in range(4)] == ["x", "y", "t5", "t500"]


@pytest.mark.row("F13.03")
def test_service_is_proportional_while_one_tenant_floods() -> None:
    """Weights 1 : 2 : 4; "a" has sent everything at once, the others keep a few waiting."""
    here = World(
        SchedulerOptions(
            scheduling_policy="fair", tenant_weights="a=1,b=2,c=4", max_num_batched_tokens=64
        )
    )
    here.join(
        "w", worker_info(num_pages=400, page_size=4, max_num_seqs=12, max_num_batched_tokens=64)
    )
    rng, mine = random.Random(7), {tenant: list[Request]() for tenant in "abc"}

    def submit(tenant: str) -> None:
        prompt = [rng.randrange(1000) for _ in range(rng.randint(4, 30))]
        sampling = Sampling(rng.randint(4, 30), seed=rng.randrange(1000))
        mine[tenant].append(here.submit(prompt, sampling, tenant=tenant))

    def served(tenant: str) -> int:
        began = [r for r in mine[tenant] if r.tokens]
        return sum(len(r.prompt) + 2 * len(r.tokens) for r in began)

    for _ in range(400):
        submit("a")
    for _ in range(1200):
        for tenant in "bc":
            if sum(not r.tokens for r in mine[tenant]) < 5:
                submit(tenant)
        here.round()
    per_weight = [served(tenant) / weight for tenant, weight in zip("abc", (1, 2, 4), strict=True)]
    assert any(not r.tokens for r in mine["a"]), "the flood is not over"
    assert max(per_weight) < 1.05 * min(per_weight)


def last_waiting(here: World) -> tuple[str, int]:
    """Gateway and handle of the last in the queue."""
    last = list(here.state.queue)[-1]
    return last.gateway, last.handle


@pytest.mark.row("F13.02", "F13.03")
@pytest.mark.parametrize("order", ORDERS.names())
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 20))
def test_nobody_starves_in_a_flood(order: str, seed: int, length: int, max_tokens: int) -> None:
    """The flood never ends and is never more urgent; who waits is served all the same."""
    rng = random.Random(seed)
    here = World(
        SchedulerOptions(
            scheduling_policy=order,
            max_num_queued_reqs=8,
            max_num_batched_tokens=12,
            max_tenant_share=1.0,
        )
    )
    here.join(
        "w", worker_info(num_pages=14, page_size=4, max_num_seqs=3, max_num_batched_tokens=12)
    )

    def flood() -> None:
        while len(here.state.queue) < 8:
            prompt = [rng.randrange(5) for _ in range(rng.randint(1, 20))]
            sampling = Sampling(rng.randint(1, 20), seed=rng.randrange(99))
            here.submit(prompt, sampling, tenant="flood", priority=rng.randint(1, 3))

    for _ in range(20):
        flood()
        here.round()
    while len(here.state.queue) >= 8:
        here.abort(*last_waiting(here))
    mine = here.submit([9] * length, Sampling(max_tokens, seed=1), tenant="mine", priority=1)
    rounds = 0
    while mine.end is None:
        flood()
        here.round()
        rounds += 1
        assert rounds < 600
    assert mine.end == "length"


def test_ahead_are_about_as_many_of_every_tenant_as_of_the_own() -> None:
    line = Line(Fair())
    for tenant in "aaaaabbc":
        line.arrive(tenant)
    new = line.arrive("c")
    line.queue.remove(new)
    # One of c itself; of a and b those that come in as many turns.
    assert line.queue.ahead(new) == (1 + 2 + 2, 50)
