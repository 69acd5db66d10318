"""A pause changes no token: what ran goes on, or finishes, or fails as asked."""

from __future__ import annotations

import pytest

from baton.protocol import AdminCommand, AdminReply, Pause, PauseMode, Resume, Sampling
from baton_scheduler.events import AdminRequested
from baton_scheduler.observability.stats import stats
from tests.support.scheduler_world import Request, World, failure


def world() -> tuple[World, list[Request]]:
    """Three sequences that run."""
    made = World()
    made.join("w")
    return made, [made.submit([n] * 40, Sampling(30, seed=n), model="fake") for n in range(3)]


def ask(here: World, action: Pause | Resume, number: int = 1) -> None:
    here.apply(AdminRequested("g", AdminCommand(number, "fake", action)))


def paused(here: World) -> list[bool]:
    told = stats(here.state, incarnation=1, uptime=1.0, dropped_frames=0)
    return [model.paused for model in told.models]


@pytest.mark.parametrize("clear", [False, True])
def test_what_is_kept_goes_on_from_its_log(clear: bool) -> None:
    here, requests = world()
    for _ in range(9):
        here.round()
    before = [len(request.tokens) for request in requests]
    assert min(before) > 0
    ask(here, Pause("keep", clear))
    assert here.admin == [AdminReply(1)] and paused(here) == [True]
    late = here.submit([7] * 10, Sampling(4), model="fake")
    for _ in range(5):
        here.round()
    assert [len(request.tokens) for request in requests] == before and not late.tokens
    ask(here, Resume(), 2)
    assert paused(here) == [False]
    here.finish()
    assert [request.end for request in (*requests, late)] == ["length"] * 4


def test_an_operator_that_waits_is_told_when_all_have_finished() -> None:
    here, requests = world()
    here.round()
    ask(here, Pause("wait"))
    late = here.submit([7] * 10, Sampling(4), model="fake")
    assert here.admin == []
    while any(request.end is None for request in requests):
        here.round()
    here.tick()
    assert here.admin == [AdminReply(1)] and late.end is None and not late.tokens
    ask(here, Resume(), 2)
    here.finish()
    assert late.end == "length"


def test_what_is_aborted_fails_and_other_models_run() -> None:
    here, requests = world()
    here.round()
    modes: tuple[PauseMode, ...] = ("abort", "keep")
    for number, mode in enumerate(modes):
        ask(here, Pause(mode), number)
    assert [failure(request).code for request in requests] == ["model_paused"] * 3
    assert here.admin == [AdminReply(0), AdminReply(1)]
    other = here.submit([7] * 10, Sampling(4))
    here.finish()
    assert other.end == "length"
