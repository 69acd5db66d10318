"""The state machine as a whole: random histories, then single decisions."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from baton.protocol import Role, Sampling, WorkerInfo
from baton.protocol.token_columns import pack
from baton_scheduler.disaggregation import handoff
from baton_scheduler.events import (
    Cause,
    DeathExplained,
    Draining,
    WorkerAssigned,
    WorkerDraining,
)
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, token, worker_info
from tests.support.scheduler_world import World, failure

GATEWAYS = st.sampled_from(["north", "south"])
WORKERS = st.sampled_from(["left", "right"])
TENANTS = st.sampled_from(["", "", "a", "b"])
INFOS = st.builds(
    worker_info,
    num_pages=st.integers(4, 24),
    page_size=st.sampled_from([1, 3, 4]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 16),
    max_model_len=st.integers(8, 40),
    host_pages=st.sampled_from([0, 0, 2, 5, 50]),
)


class Histories(RuleBasedStateMachine):
    """Arrivals, aborts, steps, late and repeated results, losses, in any order."""

    order = "fcfs"
    caching = True
    windows: tuple[tuple[int, ...], ...] = ((0,),)
    roles = ("both",)
    max_steps = 1
    depth = 2
    placement = "cost"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            SchedulerOptions(
                max_num_batched_tokens=12,
                max_num_queued_reqs=12,
                max_num_queued_tokens=200,
                scheduling_policy=self.order,
                enable_prefix_caching=self.caching,
                no_worker_seconds=1.0,
                max_worker_losses=3,
                local_prefill_max_tokens=2,
                plans_in_flight=self.depth,
                placement_policy=self.placement,
            ),
            max_steps=self.max_steps,
        )

    @rule(
        gateway=GATEWAYS,
        tenant=TENANTS,
        base=st.integers(0, 2),
        length=st.integers(1, 30),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 1000),
        stop_at=st.integers(0, 30),
        deadline_ms=st.sampled_from([0, 0, 50, 500]),
    )
    def arrive(
        self,
        gateway: str,
        tenant: str,
        base: int,
        length: int,
        max_tokens: int,
        seed: int,
        stop_at: int,
        deadline_ms: int,
    ) -> None:
        """Few bases: many prompts begin alike."""
        prompt = [base + i for i in range(length)]
        stop = token(pack(prompt), seed, stop_at)
        sampling = Sampling(max_tokens, seed, stop_ids=(stop,))
        self.world.submit(
            prompt,
            sampling,
            gateway,
            tenant=tenant,
            priority=seed % 3,
            deadline_ms=deadline_ms,
        )

    @precondition(lambda self: any(r.tokens for r in self.world.requests.values()))
    @rule(data=st.data(), gateway=GATEWAYS, tenant=TENANTS)
    def next_turn(self, data: st.DataObject, gateway: str, tenant: str) -> None:
        """A prompt that begins with another one and its answer."""
        answered = [r for r in self.world.requests.values() if r.tokens]
        old = data.draw(st.sampled_from(answered))
        prompt = [*old.prompt, *old.tokens, 7][:30]
        self.world.submit(prompt, Sampling(5, seed=1), gateway, tenant=tenant)

    @rule(
        gateway=GATEWAYS,
        tenant=TENANTS,
        length=st.integers(1, 20),
        max_tokens=st.lists(st.integers(1, 12), min_size=2, max_size=4),
        scored=st.booleans(),
    )
    def arrive_with_choices(
        self, gateway: str, tenant: str, length: int, max_tokens: list[int], scored: bool
    ) -> None:
        """One prompt, and several answers to it."""
        scores = 0 if scored and length % 4 == 0 else -1
        samplings = [Sampling(n, seed=i, prompt_logprobs=scores) for i, n in enumerate(max_tokens)]
        self.world.choices([3 + i for i in range(length)], samplings, gateway, tenant)

    @rule(seconds=st.floats(0, 0.1))
    def hear(self, seconds: float) -> None:
        self.world.hear(seconds)

    @rule(gateway=GATEWAYS)
    def clear_cache(self, gateway: str) -> None:
        self.world.clear_cache(gateway)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.world.abort(*data.draw(st.sampled_from(list(self.world.requests))))

    @rule(gateway=GATEWAYS)
    def lose_gateway(self, gateway: str) -> None:
        self.world.lose_gateway(gateway)

    @rule(name=WORKERS, info=INFOS, data=st.data())
    def join(self, name: str, info: WorkerInfo, data: st.DataObject) -> None:
        role = data.draw(st.sampled_from(self.roles))
        windows = data.draw(st.sampled_from(self.windows))
        info = structs.replace(info, pipeline_stages=data.draw(st.sampled_from((1, 2, 3))))
        self.world.join(name, structs.replace(info, role=role, kv_address=name, windows=windows))

    @precondition(lambda self: self.world.peers)
    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        self.world.rejoin(data.draw(st.sampled_from(list(self.world.peers))))

    @precondition(lambda self: self.world.peers)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.world.peers)))
        self.world.apply(WorkerDraining(name))

    @precondition(lambda self: any(peer.pulls for peer in self.world.peers.values()))
    @rule(data=st.data(), reason=st.sampled_from(["", "", "", "it failed"]))
    def pull(self, data: st.DataObject, reason: str) -> None:
        able = [name for name, peer in self.world.peers.items() if peer.pulls]
        self.world.pull(data.draw(st.sampled_from(able)), reason)

    @rule(name=WORKERS, cause=st.sampled_from(get_args(Cause)), told=st.booleans())
    def lose_worker(self, name: str, cause: Cause, told: bool) -> None:
        peer = self.world.peers.get(name)
        self.world.lose_worker(name, cause=cause)
        if peer is not None and told:
            self.world.apply(DeathExplained(peer.epoch, "outside"))

    @rule(seconds=st.floats(0.001, 0.7))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(count=st.integers(1, 8))
    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.world.round()

    @precondition(lambda self: self.world.peers)
    @rule(data=st.data(), late=st.integers(0, 3), during=st.integers(0, 2))
    def run(self, data: st.DataObject, late: int, during: int) -> None:
        self.world.run(data.draw(st.sampled_from(list(self.world.peers))), late, during)

    @precondition(lambda self: self.world.peers)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.world.deliver(data.draw(st.sampled_from(list(self.world.peers))))

    @precondition(lambda self: self.world.late)
    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.world.late))
        before = self.world.state.counters.stale_results
        assert self.world.apply(event) == []
        assert self.world.state.counters.stale_results == before + 1

    @precondition(lambda self: any(peer.results for peer in self.world.peers.values()))
    @rule(data=st.data())
    def lose_result(self, data: st.DataObject) -> None:
        busy = [name for name, peer in self.world.peers.items() if peer.results]
        self.world.peers[data.draw(st.sampled_from(busy))].results.popleft()

    @invariant()
    def books_agree(self) -> None:
        """Every event was followed by the state's own check."""
        world = self.world
        alive = sum(request.end is None for request in world.requests.values())
        assert alive == len(world.state.queue) + world.state.num_running

    def teardown(self) -> None:
        """With workers that work, everything comes to its end."""
        for name in list(self.world.peers):
            self.world.lose_worker(name)
        self.world.join("ideal", worker_info(num_pages=200, page_size=4, max_num_seqs=4))
        self.world.finish()
        assert all(request.end is not None for request in self.world.requests.values())


class PriorityHistories(Histories):
    order = "priority"


class FairHistories(Histories):
    order = "fair"


class UncachedHistories(Histories):
    caching = False


class SeveralSteps(Histories):
    max_steps = 5


class SeveralStepsDeep(Histories):
    max_steps = 7
    depth = 4


class RelayHistories(Histories):
    roles = ("prefill", "decode", "both")


class PartHistories(RelayHistories):
    """Keys are pulled page by page while their prompt is computed."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(handoff, "_LEAST_PART", 1)

    def teardown(self) -> None:
        super().teardown()
        self._patch.undo()


class ElasticHistories(RelayHistories):
    """Workers change their roles while they run."""

    @precondition(lambda self: self.world.peers)
    @rule(data=st.data(), role=st.sampled_from(["prefill", "decode", "both"]))
    def assign(self, data: st.DataObject, role: Role) -> None:
        name = data.draw(st.sampled_from(list(self.world.peers)))
        self.world.apply(WorkerAssigned(name, role))


class ElasticWindowHistories(ElasticHistories):
    windows = ((1,), (2,), (5,), (9,))


class InTurnHistories(ElasticHistories):
    placement = "round-robin"


class LeastLoadedHistories(ElasticHistories):
    placement = "least-loaded"


class WindowHistories(Histories):
    windows = ((1,), (2,), (5,), (9,))


class UncachedWindowHistories(WindowHistories):
    caching = False


class RelayedWindowHistories(WindowHistories):
    roles = ("prefill", "decode", "both")


class WindowsOfSeveralSteps(WindowHistories):
    max_steps = 7
    depth = 4


class GroupedHistories(Histories):
    windows = ((0, 5), (3, 0), (0, 1), (2, 7), (0, 4, 4))


class UncachedGroupedHistories(GroupedHistories):
    caching = False


class RelayedGroupedHistories(Histories):
    windows = ((0, 5), (0, 5), (3, 9))
    roles = ("prefill", "decode", "both")


class GroupsOfSeveralSteps(GroupedHistories):
    max_steps = 7
    depth = 4


_HISTORIES = 60
"""Of each machine, 1200 together."""


@pytest.mark.row("F12.01", "F12.02", "F12.04")
@pytest.mark.row("F13.01", "F13.02", "F13.03", "F13.04", "F13.05")
@pytest.mark.parametrize(
    "machine",
    [
        Histories,
        PriorityHistories,
        FairHistories,
        UncachedHistories,
        RelayHistories,
        PartHistories,
        ElasticHistories,
        ElasticWindowHistories,
        InTurnHistories,
        LeastLoadedHistories,
        SeveralSteps,
        SeveralStepsDeep,
        WindowHistories,
        UncachedWindowHistories,
        RelayedWindowHistories,
        WindowsOfSeveralSteps,
        GroupedHistories,
        UncachedGroupedHistories,
        RelayedGroupedHistories,
        GroupsOfSeveralSteps,
    ],
)
def test_every_history_keeps_every_promise(machine: type[Histories]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            # `make soak` loads a profile that asks for more of both than Hypothesis by itself.
            max_examples=max(_HISTORIES, settings.default.max_examples - 100),
            stateful_step_count=max(40, settings.default.stateful_step_count - 10),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_draining_finishes_what_is_here_and_refuses_the_rest() -> None:
    world = World()
    world.join("w")
    before = world.submit([1], Sampling(3))
    world.apply(Draining())
    refused = failure(world.submit([1], Sampling(3)))
    world.finish()
    assert (refused.status, refused.code, before.end) == (503, "shutting_down", "length")


def most_held(world: World) -> int:
    """Run three long answers; the most pages that all three held together while they decoded."""
    requests = [world.submit([n] * 20, Sampling(90, seed=n)) for n in range(3)]
    worker = world.state.fleet.get("w")
    assert worker is not None
    most = 0
    while not world.state.idle:
        world.round()
        if all(len(request.tokens) > 5 for request in requests):
            most = max(most, worker.pool.num_held)
    for request in requests:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
    return most


@pytest.mark.parametrize(("caching", "max_steps"), [(True, 1), (True, 6), (False, 1)])
def test_a_window_bounds_what_a_sequence_holds(caching: bool, max_steps: int) -> None:
    world = World(SchedulerOptions(enable_prefix_caching=caching), max_steps=max_steps)
    world.join("w", worker_info(num_pages=30, page_size=4, window=10))
    most = most_held(world)
    assert most <= 3 * ((10 + 2 * max_steps) // 4 + 2)
    assert world.state.counters.preemptions == 0, "28 pages each, were they to keep them"


def test_what_a_window_has_passed_is_still_found_by_a_later_prompt() -> None:
    world = World()
    world.join("w", worker_info(num_pages=60, page_size=4, window=6))
    first = world.submit(list(range(40)), Sampling(30))
    world.finish()
    again = world.submit([*first.prompt, *first.tokens, 1], Sampling(3))
    world.finish()
    assert again.cached == 69


def test_no_window_no_drop() -> None:
    world = World()
    world.join("w", worker_info(num_pages=30, page_size=4))
    world.submit([1] * 20, Sampling(90))
    world.finish()
    assert not any(plan.drop_rows for plan in world.plans)


@pytest.mark.row("F04.11", "F12.01")
@pytest.mark.parametrize("max_steps", [1, 6])
def test_of_a_mixed_model_only_the_groups_that_see_all_keep_all(max_steps: int) -> None:
    world = World(max_steps=max_steps)
    world.join("w", worker_info(num_pages=150, page_size=4, windows=(0, 10, 10)))
    most = most_held(world)
    assert 3 * 27 <= most <= 3 * (28 + 2 * ((10 + 2 * max_steps) // 4 + 2))
    assert world.state.counters.preemptions == 0, "84 pages each, were they to keep them"


@pytest.mark.parametrize(
    ("num_pages", "cached", "reason"), [(50, 69, "differs"), (40, None, "evicted")]
)
def test_what_one_group_has_evicted_is_computed_again_for_all(
    num_pages: int, cached: int | None, reason: str
) -> None:
    """The pages of a window's beginning make room first, and nobody misses them; without those of
    its end, what the other group still has is of no use."""
    world = World()
    world.join("w", worker_info(num_pages=num_pages, page_size=4, windows=(0, 6)))
    first = world.submit(list(range(40)), Sampling(30))
    world.finish()
    world.submit([500 + n for n in range(40)], Sampling(2))
    world.finish()
    again = world.submit([*first.prompt, *first.tokens, 1], Sampling(3), report=True)
    world.finish()
    assert again.tokens == expected_tokens(again.prompt, again.sampling)[0]
    assert again.note is not None and (again.cached, again.note.miss_reason) == (cached, reason)
