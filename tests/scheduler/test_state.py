"""The state machine as a whole: random histories, then single decisions."""

from __future__ import annotations

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

from baton.protocol import Failed, Result, Role, Sampling, Submit, Tokens, WorkerInfo
from baton.protocol.token_columns import pack
from baton_scheduler.disaggregation import handoff
from baton_scheduler.events import (
    Arrived,
    Closing,
    Draining,
    Reply,
    Settled,
    Tick,
    WorkerAssigned,
    WorkerDraining,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from tests.fakes.hash_worker import expected_tokens, token, worker_info
from tests.support.scheduler_world import World

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

    @rule(name=WORKERS)
    def lose_worker(self, name: str) -> None:
        self.world.lose_worker(name)

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
            # `make soak` loads a profile that asks for more of both.
            max_examples=max(120, settings.default.max_examples),
            stateful_step_count=max(40, settings.default.stateful_step_count - 10),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def failure(request: object) -> Failed:
    failed = request.failed  # type: ignore[attr-defined]
    assert isinstance(failed, Failed)
    return failed


@pytest.mark.row("F13.02")
def test_after_a_loss_sequences_go_on_from_their_logs_in_front_of_later_ones() -> None:
    world = World()
    world.join("w")
    first = [world.submit([n], Sampling(9, seed=n)) for n in range(3)]
    for _ in range(4):
        world.round()
    kept = [len(request.tokens) for request in first]
    assert min(kept) > 0
    world.lose_worker()
    world.submit([7], Sampling(2))
    assert [s.arrival for s in world.state.queue] == [1, 2, 3, 4]
    world.join("w")
    world.tick()
    entered = world.plans[-2].new_sequences
    assert [len(new.tokens) // 4 - new.num_prompt for new in entered[:3]] == kept
    world.finish()
    for request in first:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


@pytest.mark.row("F12.01")
def test_what_a_worker_still_holds_when_it_joins_anew_is_found() -> None:
    world = World()
    world.join("w")
    prompt = list(range(64))
    world.submit(prompt, Sampling(9, seed=1))
    world.finish()
    world.tick(1.0)
    world.round()
    world.rejoin("w")
    again = world.submit([*prompt, 7], Sampling(9, seed=2))
    world.finish()
    assert again.cached == 64
    world.clear_cache()
    world.tick()
    world.hurry("w")
    world.rejoin("w")
    assert not world.state.fleet.get("w").pool.num_cached  # type: ignore[union-attr]


def test_what_a_page_held_before_it_was_written_anew_is_not_found() -> None:
    world = World(SchedulerOptions(max_num_batched_tokens=32))
    world.join("w", worker_info(num_pages=8, max_model_len=128, max_num_batched_tokens=32))
    first = list(range(64))
    world.submit(first, Sampling(1, seed=1))
    world.finish()
    world.tick(1.0)
    world.hurry("w")
    other = world.submit(list(range(100, 210)), Sampling(9, seed=2))
    for _ in range(4):  # It has all pages, and has written to most, but few have their names yet.
        world.round()
    assert not other.tokens
    world.abort("g", 2)
    world.rejoin("w")
    again = world.submit([*first, 7], Sampling(9, seed=3))
    world.finish()
    assert again.cached is not None and again.cached < 64


def test_a_sequence_that_was_there_at_two_losses_is_quarantined() -> None:
    world = World()
    request = world.submit([1], Sampling(50))
    for _ in range(2):
        world.join("w")
        world.round()
        world.lose_worker()
    assert (failure(request).status, failure(request).code) == (500, "request_quarantined")


def test_a_sequence_that_the_worker_had_not_begun_is_not_blamed() -> None:
    world = World(SchedulerOptions(plans_in_flight=1, max_worker_losses=1))
    world.join("w", worker_info(max_num_batched_tokens=50))
    decoding = world.submit([1], Sampling(50))
    world.round()
    prefilling, placed = world.submit([2] * 49, Sampling(5)), world.submit([3], Sampling(5))
    world.tick()
    assert world.state.num_running == 3
    world.lose_worker()
    assert (decoding.end, prefilling.end, placed.end) == ("failed", "failed", None)


def test_the_queue_is_bounded_by_number_and_by_tokens() -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=2, max_num_queued_tokens=10))
    assert world.submit([1] * 4, Sampling(1)).end is None
    assert failure(world.submit([1] * 7, Sampling(1))).code == "server_is_overloaded"
    assert world.submit([1] * 6, Sampling(1)).end is None
    refused = failure(world.submit([1], Sampling(1)))
    assert (refused.status, refused.code) == (503, "server_is_overloaded")
    assert 1 <= refused.retry_after <= 120


def test_retry_after_follows_the_measured_rate() -> None:
    world = World(SchedulerOptions(max_num_queued_reqs=1))
    world.join("w", worker_info(max_num_seqs=1))
    world.submit([1], Sampling(500))
    for _ in range(300):
        world.round()
    world.submit([1] * 900, Sampling(1))
    rate = world.state.computed.rate("")
    assert rate > 50
    seconds = failure(world.submit([1], Sampling(1))).retry_after
    assert seconds == -(-900 // rate)


def test_without_a_worker_requests_wait_and_are_then_refused() -> None:
    world = World(SchedulerOptions(no_worker_seconds=2.0))
    world.tick()
    early = world.submit([1], Sampling(1))
    world.tick(1.5)
    late = world.submit([1], Sampling(1))
    world.tick(1.0)
    assert (failure(early).status, failure(early).code) == (503, "no_worker")
    assert failure(early).retry_after >= 1 and late.end is None
    world.join("w")
    world.finish()
    assert late.end == "length"


def test_patience_starts_anew_when_the_last_worker_goes() -> None:
    world = World(SchedulerOptions(no_worker_seconds=2.0))
    world.join("w")
    request = world.submit([1], Sampling(500))
    for _ in range(300):
        world.round()
    world.lose_worker()
    world.tick(1.0)
    world.tick(1.5)
    assert request.end is None
    world.tick(1.0)
    assert failure(request).code == "no_worker"


def test_what_can_never_fit_is_refused_and_holds_nobody_up() -> None:
    world = World()
    world.join("w", worker_info(num_pages=4, page_size=4, max_model_len=100))
    long, short = world.submit([1] * 16, Sampling(1)), world.submit([1] * 15, Sampling(9))
    world.finish()
    assert (failure(long).status, failure(long).code) == (400, "context_length_exceeded")
    assert (len(short.tokens), short.end) == (1, "length")


def test_a_gateway_that_goes_takes_its_sequences_along() -> None:
    world = World()
    world.join("w")
    gone = world.submit([1], Sampling(9), "north")
    stays = world.submit([2], Sampling(9), "south")
    for _ in range(3):
        world.round()
    world.lose_gateway("north")
    world.finish()
    assert (gone.end, stays.end) == ("abort", "length")


def test_a_live_handle_that_is_submitted_again_goes_on_from_the_given_log() -> None:
    world = World()
    world.join("w")
    request = world.submit([4], Sampling(9, seed=2))
    for _ in range(5):
        world.round()
    assert len(request.tokens) > 2
    del request.tokens[2:]
    request.note, request.born = None, world.now
    again = Submit(1, "r", pack([4]), request.sampling, log=pack(request.tokens))
    world.apply(Arrived("g", again))
    world.finish()
    assert (request.tokens, request.end) == expected_tokens([4], request.sampling)


@pytest.mark.parametrize(
    ("submit", "code"),
    [
        (Submit(5, "r", b"", Sampling(1)), "empty_prompt"),
        (Submit(5, "r", b"123", Sampling(1)), "bad_frame"),
    ],
)
def test_a_broken_submit_is_refused_alone(submit: Submit, code: str) -> None:
    (decision,) = State(SchedulerOptions()).apply(Arrived("g", submit))
    assert isinstance(decision, Reply) and isinstance(decision.message, Failed)
    assert decision.message.code == code


def test_a_full_log_needs_no_worker() -> None:
    submit = Submit(5, "r", pack([1]), Sampling(2), log=pack([3, 4]))
    (decision,) = State(SchedulerOptions()).apply(Arrived("g", submit))
    assert isinstance(decision, Reply) and isinstance(decision.message, Tokens)
    assert decision.message.finished == {5: "length"}


def test_draining_finishes_what_is_here_and_refuses_the_rest() -> None:
    world = World()
    world.join("w")
    before = world.submit([1], Sampling(3))
    world.apply(Draining())
    refused = failure(world.submit([1], Sampling(3)))
    world.finish()
    assert (refused.status, refused.code, before.end) == (503, "shutting_down", "length")


def test_closing_tells_every_sequence() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=1))
    requests = [world.submit([n], Sampling(9)) for n in range(3)]
    world.round()
    world.apply(Closing())
    assert {failure(request).code for request in requests} == {"shutting_down"}
    assert world.state.idle


def test_a_draining_worker_finishes_and_gets_nothing_new() -> None:
    world = World()
    world.join("old")
    first = world.submit([1], Sampling(6))
    world.round()
    world.apply(WorkerDraining("old"))
    world.join("new")
    second = world.submit([2], Sampling(6))
    world.tick()
    assert world.state.fleet.get("new") is not None
    assert len(world.state.fleet.get("new").batch) == 1  # type: ignore[union-attr]
    world.finish()
    world.round()
    assert (first.end, second.end) == ("length", "length")
    assert world.peers["old"].engine.slots == {}


@pytest.mark.parametrize(("epoch", "step"), [(99, 1), (1, 77)])
def test_a_result_of_another_epoch_or_step_is_dropped_and_counted(epoch: int, step: int) -> None:
    world = World()
    world.join("w")
    world.submit([1], Sampling(3))
    world.tick()
    stale = Result(epoch, step, pack([0], "I"), pack([0], "I"), b"\x01", pack([1]))
    assert world.apply(Settled("w", stale)) == []
    assert world.state.counters.stale_results == 1


def test_equal_histories_have_equal_digests_and_different_ones_do_not() -> None:
    worlds = [World(), World(), World()]
    for number, world in enumerate(worlds):
        world.join("w")
        world.submit([1], Sampling(3 + (number == 2)))
        for _ in range(4):
            world.round()
    digests = [world.state.digest() for world in worlds]
    assert digests[0] == digests[1] != digests[2]
    worlds[0].apply(Tick(99.0))
    assert worlds[0].state.digest() != digests[1]


@pytest.mark.row("F13.03")
def test_a_more_urgent_one_takes_the_place_of_one_that_runs() -> None:
    world = World(SchedulerOptions(scheduling_policy="priority"))
    world.join("w", worker_info(max_num_seqs=2))
    low = [world.submit([n] * 20, Sampling(20, seed=n), priority=n) for n in (1, 2)]
    for _ in range(4):
        world.round()
    before = [len(request.tokens) for request in low]
    assert min(before) > 0
    urgent = world.submit([7], Sampling(5, seed=7), priority=0)
    equal = world.submit([8], Sampling(5, seed=8), priority=1)
    world.tick()
    assert [(s.submit.priority, s.arrival) for s in world.state.queue] == [(1, 4), (2, 2)]
    assert world.state.counters.preemptions == 1
    while urgent.end is None:
        world.round()
    assert len(low[0].tokens) > before[0] and len(low[1].tokens) <= before[1] + 2
    world.finish()
    for request in (*low, urgent, equal):
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


@pytest.mark.row("F13.03")
def test_nobody_is_preempted_when_that_would_not_be_enough() -> None:
    world = World(SchedulerOptions(scheduling_policy="priority"))
    world.join("w", worker_info(num_pages=8, page_size=4, max_num_seqs=4))
    world.submit([1] * 12, Sampling(9, seed=1), priority=0)
    world.submit([2] * 4, Sampling(4, seed=2), priority=5)
    world.round()
    big = world.submit([3] * 24, Sampling(2, seed=3), priority=1)
    world.tick()
    assert world.state.counters.preemptions == 0 and world.state.num_running == 2
    world.finish()
    assert big.end == "length"


def test_a_deadline_ends_what_waits_and_what_runs_with_different_errors() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=1))
    runs = world.submit([1], Sampling(500), deadline_ms=200)
    waits = world.submit([2], Sampling(5), deadline_ms=100)
    free = world.submit([3], Sampling(5))
    for _ in range(30):
        world.round()
    assert (failure(waits).status, failure(waits).code) == (503, "queue_timeout")
    assert failure(waits).retry_after >= 1 and waits.tokens == []
    assert (failure(runs).status, failure(runs).code) == (504, "deadline_exceeded")
    assert 5 < len(runs.tokens) < 25 and free.end == "length"
    assert world.state.idle


def test_what_ends_in_time_never_hears_of_its_deadline() -> None:
    world = World()
    world.join("w")
    requests = [world.submit([n], Sampling(3), deadline_ms=1000) for n in range(5)]
    world.finish()
    world.tick(5.0)
    assert {request.end for request in requests} == {"length"}


@pytest.mark.parametrize("limit", [{"max_num_queued_reqs": 4}, {"max_num_queued_tokens": 12}])
def test_one_tenant_beyond_its_share_is_told_so_and_others_are_not(limit: dict[str, int]) -> None:
    world = World(SchedulerOptions(max_tenant_share=0.5, **limit))  # type: ignore[arg-type]
    for _ in range(2):
        assert world.submit([1] * 3, Sampling(1), tenant="a").end is None
    refused = failure(world.submit([1] * 3, Sampling(1), tenant="a"))
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert refused.retry_after >= 1
    for tenant in "bc":
        assert world.submit([1] * 3, Sampling(1), tenant=tenant).end is None
    assert failure(world.submit([1] * 3, Sampling(1), tenant="d")).status == 503
    world.join("w")
    world.finish()
    assert world.state.queue.of("").share("a") == (0, 0)


def test_a_note_tells_place_and_estimate() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=2, max_num_batched_tokens=100))
    world.peers["w"].engine.duration_us = 20_000
    first = [world.submit([n] * 40, Sampling(30, seed=n)) for n in range(5)]
    world.finish()
    assert [r.note.position for r in first if r.note] == [0, 1, 2, 3, 4]
    assert {r.note.ttft_ms for r in first if r.note} == {-1}, "nothing was measured yet"
    alone = world.submit([9] * 40, Sampling(5, seed=9))
    world.finish()
    assert alone.note is not None and alone.note.position == 0
    assert 10 <= alone.note.ttft_ms <= 60


def test_an_estimate_grows_with_what_waits() -> None:
    world = World()
    world.join("w", worker_info(max_num_seqs=2))
    world.peers["w"].engine.duration_us = 10_000
    for _ in range(3):
        world.submit([1] * 20, Sampling(100))
        for _ in range(70):
            world.round()
    line = [world.submit([n] * 20, Sampling(9, seed=n)) for n in range(30)]
    world.finish()
    estimates = [request.note.ttft_ms for request in line if request.note]
    assert estimates == sorted(estimates) and estimates[-1] > 4 * estimates[0]


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
