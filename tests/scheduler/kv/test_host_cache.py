"""Pages that go to host memory and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kv.page_groups import PageGroups
from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_hashes import BlockHashes
from baton_scheduler.kv.host_cache import HostCache
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import Request, World

PROMPT = list(range(1, 19))
"""4 full pages of 4, and 2 tokens."""


def chain() -> BlockHashes:
    return BlockHashes(Submit(1, "r", pack(PROMPT), Sampling(1)), unpack(b""), 4)


def found(host: HostCache, known: BlockHashes, first: int, most: int) -> list[int]:
    [table] = host.match(known, first, most, PageGroups((0,), 4, 64))
    assert table.first == first
    return table.pages


@given(
    st.integers(0, 5), st.lists(st.tuples(st.sampled_from("kpuor"), st.integers(0, 8)), max_size=60)
)
def test_pages_are_free_or_have_one_name(total: int, steps: list[tuple[str, int]]) -> None:
    host, pinned = HostCache(total), list[list[int]]()
    known = chain()
    for action, number in steps:
        if action == "k":
            host.keep(number, known.at(number % 4))
        elif action == "p":
            pages = found(host, known, number % 4, 4)
            host.pin(pages)
            pinned.append(pages)
        elif action == "u" and pinned:
            host.unpin(pinned.pop())
        elif action == "o":
            pairs = host.outgoing()
            assert len(set(pairs[1::2])) == len(pairs) // 2
        elif action == "r":
            host.reset()
        host.check()
    assert len(host) <= total


def test_the_least_recently_kept_makes_room_but_not_what_will_be_read() -> None:
    host, known = HostCache(2), chain()
    host.keep(10, known.at(0))
    host.keep(11, known.at(1))
    first = host.outgoing()
    assert first[::2] == [10, 11]
    host.keep(12, known.at(0))  # It is known: now it is the latest.
    host.keep(13, known.at(2))
    assert found(host, known, 0, 4) == [first[1]] and host.outgoing() == [13, first[3]]
    host.pin(found(host, known, 0, 1))
    host.keep(14, known.at(3))
    host.keep(15, known.at(1))
    assert found(host, known, 0, 1) == [first[1]]


def test_a_copy_that_is_still_to_be_made_keeps_its_place() -> None:
    host, known = HostCache(1), chain()
    host.keep(10, known.at(0))
    host.keep(11, known.at(1))
    assert host.outgoing() == [10, 0] and len(found(host, known, 0, 1)) == 1


# In a world whose fake worker checks every key that is read.


def world(num_pages: int, host_pages: int = 40, **limits: bool) -> World:
    made = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    info = worker_info(num_pages=num_pages, page_size=4, max_num_seqs=4, host_pages=host_pages)
    made.join("w", info)
    return made


def swapped(here: World) -> tuple[int, int]:
    """Pages that went out, and that came back."""
    out = sum(len(plan.swap_out) // 8 for plan in here.plans)
    return out, sum(len(plan.swap_in) // 8 for plan in here.plans)


def ask(here: World, prompt: list[int]) -> Request:
    request = here.submit(prompt, Sampling(2, seed=1))
    here.finish()
    return request


def test_an_evicted_prefix_comes_back_from_the_host() -> None:
    here = world(8)
    ask(here, PROMPT)
    ask(here, [50 + i for i in range(28)])
    again = ask(here, PROMPT)
    assert again.cached == 16 and swapped(here)[1] >= 1
    assert again.tokens == expected_tokens(again.prompt, again.sampling)[0]


def test_without_host_memory_it_is_computed_again() -> None:
    here = world(8, host_pages=0)
    ask(here, PROMPT)
    ask(here, [50 + i for i in range(28)])
    assert ask(here, PROMPT).cached is None and swapped(here) == (0, 0)


def test_a_preempted_sequence_finds_its_pages_on_the_host() -> None:
    here = world(12)
    requests = [here.submit([n] * 9, Sampling(25, seed=n)) for n in range(3)]
    here.finish()
    assert here.state.counters.preemptions > 0 and min(swapped(here)) > 0
    for request in requests:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


def test_what_makes_room_for_later_steps_of_a_plan_is_kept_too() -> None:
    here = World(max_steps=8)
    here.join("w", worker_info(num_pages=10, page_size=4, max_num_seqs=4, host_pages=40))
    ask(here, PROMPT)
    other = here.submit([50 + i for i in range(18)], Sampling(20, seed=2))
    here.finish()
    again = ask(here, PROMPT)
    assert other.end == "length" and again.cached == 16
    assert again.tokens == expected_tokens(again.prompt, again.sampling)[0]


def test_behind_a_page_from_the_host_a_whole_page_of_the_device_is_copied() -> None:
    here = world(12)
    # Two at once with the same first two blocks: the first one's pages have the names of those.
    fronts = [here.submit([*range(8), *([n] * 5)], Sampling(1)) for n in (90, 91)]
    here.finish()
    ask(here, [50 + i for i in range(35)])  # The first one's end and its second block make room.
    again = ask(here, fronts[1].prompt)
    assert again.cached == 12 and swapped(here)[1] == 1
    assert again.tokens == expected_tokens(again.prompt, again.sampling)[0]


def test_a_slow_way_back_is_not_taken() -> None:
    here = world(8)
    engine = here.peers["w"].engine
    engine.duration_us, engine.swap_us = 1000, 900
    ask(here, PROMPT)
    for start in (50, 80, 110):
        ask(here, [start + i for i in range(28)])
    before = swapped(here)
    assert before[0] > 0
    ask(here, PROMPT)
    assert swapped(here)[1] == before[1] == 0


def test_a_reset_reaches_the_host() -> None:
    here = world(8)
    ask(here, PROMPT)
    ask(here, [50 + i for i in range(28)])
    assert here.clear_cache() > 8
    assert ask(here, PROMPT).cached is None


def test_what_waits_for_its_plan_and_is_preempted_lets_the_host_pages_go() -> None:
    here = world(8, enable_prefix_caching=True)
    ask(here, PROMPT)
    ask(here, [50 + i for i in range(28)])
    worker = here.state.fleet.get("w")
    assert worker is not None and worker.pool.host is not None
    here.submit([99] * 200, Sampling(1))  # Too long: it is refused, and takes nothing.
    request = here.submit(PROMPT, Sampling(2))
    here.tick()
    here.abort("g", len(here.requests))
    assert request.end == "abort" and worker.batch.pending_swap_in == {}
    here.round()
    worker.pool.host.check()
    assert not any(worker.pool.host._pins)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_workers_that_pass_sequences_on_do_without(role: str) -> None:
    here = World()
    here.join("w", worker_info(role=role, pages_address="w", host_pages=9))
    assert here.state.fleet.get("w").pool.host is None  # type: ignore[union-attr]
