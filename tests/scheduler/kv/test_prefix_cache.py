"""Page hashes and prefix cache hits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kv.page_groups import PageGroups
from baton.protocol import Plan, Result, Sampling, WorkerInfo
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_hashes import group_key
from baton_scheduler.block_table import BlockTable
from baton_scheduler.events import Settled
from baton_scheduler.kv.prefix_cache import PrefixCache, longest_usable_prefix
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.block_hashes import chain
from tests.support.scheduler_world import World


def test_a_match_ends_at_the_first_unknown_block() -> None:
    index, known = PrefixCache(), chain([1, 2, 3, 4, 5, 6])
    index.add(7, known.at(0))
    index.add(9, known.at(2))
    assert index.match(known, 3) == [7]
    index.add(8, known.at(1))
    assert index.match(known, 3) == [7, 8, 9] and index.match(known, 2) == [7, 8]
    assert index.match(chain([1, 2, 3, 9]), 2) == [7]
    index.forget(7)
    assert index.match(known, 3) == [] and 7 not in index and len(index) == 2
    index.check()


WINDOWS = st.lists(st.sampled_from([0, 0, 1, 3, 4, 9]), min_size=1, max_size=3).map(tuple)


@pytest.mark.row("F12.02")
@given(
    WINDOWS, st.integers(1, 4), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 9))), st.data()
)
def test_a_prefix_reaches_as_far_as_every_group_has_what_is_seen(
    windows: tuple[int, ...], size: int, gone: set[tuple[int, int]], data: st.DataObject
) -> None:
    groups, most = PageGroups(windows, size, 8), data.draw(st.integers(0, 10))
    first = data.draw(st.integers(0, most))

    def whole(blocks: int) -> bool:
        seen = [
            (group, block)
            for group in range(len(groups))
            for block in range(max(first, groups.first(group, blocks * size)), blocks)
        ]
        return not gone & set(seen)

    found = longest_usable_prefix(
        lambda group, block: (group, block) not in gone, groups, most, first
    )
    assert found == max(blocks for blocks in range(first, most + 1) if whole(blocks))


def test_a_window_is_found_without_what_is_before_it() -> None:
    index, known, groups = PrefixCache(), chain(list(range(10))), PageGroups((0, 3), 2, 8)
    for block in range(5):
        index.add(10 + block, group_key(known.at(block), 0))
    assert index.cached_prefix(known, 5, groups) == [BlockTable(0, []), BlockTable(0, [])]
    for block in (1, 2, 3):
        index.add(20 + block, group_key(known.at(block), 1))
    assert index.cached_prefix(known, 5, groups) == [
        BlockTable(0, [10, 11, 12, 13]),
        BlockTable(3, [23]),
    ]
    index.forget(23)
    assert index.cached_prefix(known, 5, groups) == [
        BlockTable(0, [10, 11, 12]),
        BlockTable(2, [22]),
    ]
    index.forget(10)
    assert index.cached_prefix(known, 5, groups) == [BlockTable(0, []), BlockTable(0, [])]
    assert index.cached_prefix(known, 5, PageGroups((0,), 2, 8)) == [BlockTable(0, [])]
    index.check()


def test_the_first_page_of_a_prefix_keeps_its_name() -> None:
    index, known = PrefixCache(), chain([1, 2])
    index.add(1, known.at(0))
    index.add(2, known.at(0))
    assert index.match(known, 1) == [1] and 2 not in index


# Hits, as gateways and workers see them. Pages of 4 tokens.

PROMPT = list(range(1, 19))
"""4 full pages and 2 tokens."""


def world(info: WorkerInfo | None = None, **limits: object) -> World:
    made = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    made.join("w", info or worker_info(num_pages=32, page_size=4, max_num_seqs=4))
    return made


def entered(plan: Plan) -> list[int]:
    return [new.num_computed for new in plan.new_sequences]


@pytest.mark.row("F12.02")
def test_the_same_prompt_again_computes_its_last_token_alone() -> None:
    here = world()
    first = here.submit(PROMPT, Sampling(3, seed=1))
    here.finish()
    here.plans.clear()
    again = here.submit(PROMPT, Sampling(3, seed=2))
    here.finish()
    assert (first.cached, again.cached) == (None, 17)
    assert entered(here.plans[0]) == [17] and unpack(here.plans[0].num_scheduled, "I")[0] == 1
    counters = here.state.counters
    assert (counters.prefix_queries, counters.prefix_hits) == (36, 17)


def test_at_least_one_token_is_computed() -> None:
    here = world()
    for _ in range(2):
        last = here.submit(PROMPT[:16], Sampling(2))
        here.finish()
    assert last.cached == 15


@pytest.mark.row("F12.02")
def test_a_next_turn_finds_the_answer_too() -> None:
    here = world()
    first = here.submit(PROMPT, Sampling(9, seed=1))
    here.finish()
    turn = here.submit([*PROMPT, *first.tokens, 5], Sampling(1))
    here.finish()
    # 18 + 9 tokens, of which the last was never run: 26 keys, the last 2 of them by a copy.
    assert turn.cached == 26


@pytest.mark.row("F12.02")
def test_a_hit_on_a_sequence_that_still_runs_shares_its_pages() -> None:
    here = world()
    here.submit(PROMPT, Sampling(40, seed=1))
    here.round()
    second = here.submit(PROMPT, Sampling(40, seed=2))
    here.round()
    here.round()
    pool = here.state.fleet.get("w").pool  # type: ignore[union-attr]
    assert second.cached == 17
    assert sorted(pool.references(page) for page in range(32))[-5:] == [1, 2, 2, 2, 2]
    here.finish()


def test_a_page_is_not_offered_before_its_result_is_settled() -> None:
    here = world()
    here.submit(PROMPT, Sampling(9, seed=1))
    here.tick()
    early = here.submit(PROMPT, Sampling(9, seed=2))
    here.tick()
    here.finish()
    assert early.cached is None


def test_an_abort_in_mid_prefill_leaves_what_was_settled() -> None:
    here = world(worker_info(num_pages=32, page_size=4, max_num_batched_tokens=6))
    here.submit(PROMPT, Sampling(9))
    here.round()
    here.tick()
    assert len(here.peers["w"].plans) + len(here.peers["w"].inbox) == 2, "chunks 2 and 3"
    here.abort("g", 1)
    again = here.submit(PROMPT, Sampling(9))
    here.finish()
    assert again.cached == 6


def test_what_a_lost_result_computed_is_not_offered() -> None:
    here = world()
    request = here.submit(PROMPT, Sampling(5))
    here.tick()
    here.run()
    lost = here.peers["w"].results.popleft()
    here.run()
    here.deliver()
    pool = here.state.fleet.get("w").pool  # type: ignore[union-attr]
    assert lost.step == 1 and len(pool.index) == 0
    here.finish()
    assert request.end == "length"


def test_of_a_row_whose_token_is_missing_nothing_is_offered() -> None:
    here = world()
    here.submit(PROMPT, Sampling(5))
    here.tick()
    here.apply(Settled("w", Result(here.peers["w"].epoch, 1, b"", b"", b"", b"")))
    pool = here.state.fleet.get("w").pool  # type: ignore[union-attr]
    assert len(pool.index) == 0 and pool.num_free == 32


def test_of_a_sequence_that_failed_nothing_is_reused() -> None:
    here = world()
    here.submit(PROMPT, Sampling(20))
    for _ in range(4):
        here.round()
    pool = here.state.fleet.get("w").pool  # type: ignore[union-attr]
    assert len(pool.index) > 0
    here.run()
    sent = here.peers["w"].results[-1]
    broken = Result(sent.epoch, sent.step, b"", b"", b"", b"", failed={0: "NaN"})
    here.peers["w"].results.clear()
    here.apply(Settled("w", broken))
    assert (len(pool.index), pool.num_cached, pool.num_free) == (0, 0, 32)


@pytest.mark.row("F12.02")
@pytest.mark.parametrize("other", [{"tenant": "b"}, {"salt": b"x"}])
def test_tenants_and_salts_share_nothing(other: dict[str, object]) -> None:
    here = world()
    here.submit(PROMPT, Sampling(1), tenant="a")
    here.finish()
    stranger = here.submit(PROMPT, Sampling(1), **({"tenant": "a"} | other))  # type: ignore[arg-type]
    friend = here.submit(PROMPT, Sampling(1), tenant="a")
    here.finish()
    assert (stranger.cached, friend.cached) == (None, 17)


def test_a_prompt_that_is_scored_is_computed_whole() -> None:
    here = world()
    here.submit(PROMPT, Sampling(1))
    here.finish()
    scored = here.submit(PROMPT, Sampling(1, prompt_logprobs=0))
    only = here.submit(PROMPT, Sampling(0, prompt_logprobs=0))
    here.finish()
    assert (scored.cached, only.cached, only.end) == (None, None, "length")


def test_it_can_be_switched_off() -> None:
    here = world(enable_prefix_caching=False)
    for _ in range(2):
        last = here.submit(PROMPT, Sampling(1))
        here.finish()
    assert last.cached is None and here.state.counters.prefix_queries == 0


@pytest.mark.row("F12.12")
def test_a_reset_empties_the_cache_and_nothing_else() -> None:
    here = world()
    here.submit(PROMPT, Sampling(1))
    here.finish()
    running = here.submit([9, *PROMPT], Sampling(30, seed=3))
    for _ in range(3):
        here.round()
    assert here.clear_cache() == 5 and here.clear_cache() == 0
    again = here.submit(PROMPT, Sampling(1))
    here.finish()
    assert (again.cached, running.end) == (None, "length")


@pytest.mark.row("F13.05")
def test_a_preempted_sequence_comes_back_to_its_own_pages() -> None:
    here = world(worker_info(num_pages=10, page_size=2, max_num_seqs=4))
    requests = [here.submit([1, 2, 3], Sampling(6)), here.submit(PROMPT[:11], Sampling(8))]
    here.finish()
    assert here.state.counters.preemptions == 1
    _, _, resumed = [n for plan in here.plans for n in entered(plan)]
    assert resumed >= 10
    assert all(request.cached is None for request in requests), "it is not a hit of the client's"


# Copy on write.


@pytest.mark.parametrize(
    ("held", "wanted", "common"),
    [([5, 6], [5, 6, 7], 2), ([5, 6, 7], [5, 6], 2), ([5, 9], [5, 6], 1), ([9], [5], 0)],
)
def test_a_fork_begins_alike(held: list[int], wanted: list[int], common: int) -> None:
    index = PrefixCache()
    index.begin(3, b"p", pack(held))
    index.begin(4, b"q", pack(wanted))
    assert index.fork(b"p", pack(wanted)) == ((3, common) if common else (-1, 0))
    assert index.fork(b"unknown", pack(wanted)) == (-1, 0)
    index.forget(3)
    assert 3 not in index and index.fork(b"p", pack(wanted)) == (-1, 0)
    index.check()


def test_of_forks_the_longest_is_taken_of_the_latest_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_scheduler.kv.prefix_cache._MOST_FORKS", 2)
    index = PrefixCache()
    for page, tokens in enumerate(([5, 6, 7], [5, 6], [5])):
        index.begin(page, b"p", pack(tokens))
    assert index.fork(b"p", pack([5, 6, 7])) == (1, 2)


def test_a_second_page_of_equal_content_is_forgotten() -> None:
    index, known = PrefixCache(), chain([1, 2])
    assert index.add(1, known.at(0))
    index.begin(2, known.at(-1), pack([1]))
    assert not index.add(2, known.at(0)) and 2 not in index
    index.check()


def copies(plan: Plan) -> list[tuple[int, int]]:
    columns = (unpack(plan.copy_from, "I"), unpack(plan.copy_to, "I"))
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("length", [2, 3, 15, 16, 17, 18])
@pytest.mark.parametrize("budget", [4, 256])
def test_choices_share_one_prefill_and_write_copies(length: int, budget: int) -> None:
    here = world(
        worker_info(num_pages=64, page_size=4, max_num_seqs=8, max_num_batched_tokens=budget),
        max_num_batched_tokens=budget,
    )
    chosen = here.choices(PROMPT[:length], [Sampling(9, seed=i) for i in range(4)])
    while any(request.first_token is None for request in chosen):
        here.round()
    pool = here.state.fleet.get("w").pool  # type: ignore[union-attr]
    full = (length - 1) // 4
    assert sorted(map(pool.references, range(64)))[-full or 64 :] == [4] * full
    here.finish()
    # The prompt once; of the other three, the last token alone.
    computed = sum(sum(unpack(plan.num_scheduled, "I")) for plan in here.plans)
    assert computed == length + 3 * 1 + 4 * 8
    copied = [pair for plan in here.plans for pair in copies(plan)]
    assert len(copied) == (3 if (length - 1) % 4 else 0)
    assert [request.cached for request in chosen] == [None] + [length - 1] * 3


def test_other_requests_overtake_choices_that_wait_for_their_first() -> None:
    here = world(worker_info(num_pages=64, page_size=4, max_num_seqs=8))
    here.choices(PROMPT, [Sampling(9, seed=i) for i in range(3)])
    other = here.submit([7, 8], Sampling(9))
    here.tick()
    assert [len(new.tokens) // 4 for plan in here.plans for new in plan.new_sequences] == [18, 2]
    assert len(here.state.queue) == 2
    here.finish()
    assert other.end == "length"


@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_choices_go_on_when_their_first_one_ends_early(order: str) -> None:
    here = world(
        worker_info(num_pages=64, page_size=4, max_num_seqs=8, max_num_batched_tokens=6),
        scheduling_policy=order,
    )
    chosen = here.choices(PROMPT, [Sampling(9, seed=i) for i in range(3)])
    here.round()
    here.abort("g", 1)
    here.finish()
    assert [request.end for request in chosen] == ["abort", "length", "length"]


def test_a_source_stays_until_its_copy_is_on_the_way() -> None:
    """The copy's row has to wait for budget, and the source's owner has gone meanwhile."""
    here = world(worker_info(num_pages=10, page_size=4, max_num_seqs=4, max_num_batched_tokens=6))
    here.submit(PROMPT[:6], Sampling(2, seed=1))
    here.finish()
    here.submit([9] * 9, Sampling(1, seed=2))
    here.tick()
    second = here.submit(PROMPT[:7], Sampling(2, seed=3))
    here.tick()
    worker = here.state.fleet.get("w")
    assert worker is not None
    before = dict(worker.batch.sources)
    here.finish()
    assert second.cached == 6 and worker.batch.sources == {} and worker.pool.num_free == 10
    assert before, "the copy was to wait for a plan"


def test_without_a_page_to_spare_nothing_is_copied() -> None:
    here = world(worker_info(num_pages=5, page_size=4, max_num_seqs=4))
    for _ in range(2):
        last = here.submit(PROMPT, Sampling(2))
        here.finish()
    assert last.cached == 16


def test_of_two_idle_workers_the_one_that_knows_the_prefix_is_taken() -> None:
    here = World()
    info = worker_info(num_pages=32, page_size=4, max_num_seqs=8)
    for name in ("a", "b"):
        here.join(name, info)
    here.submit([99, 98], Sampling(30))
    here.submit(PROMPT, Sampling(2))
    for _ in range(5):
        here.round()
    known = {w.name: len(w.pool.index) for w in here.state.fleet}
    assert known["b"] > known["a"]
    # Equal load again, and "a" would be first by name.
    again = here.submit(PROMPT, Sampling(2))
    here.finish()
    assert again.cached == 17
