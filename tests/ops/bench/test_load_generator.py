"""The load generator against a mock server that counts requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeVar

import httpx
import pytest

from baton.errors import Unavailable
from baton_ops.bench.load_generator import (
    Endpoint,
    Outcome,
    Request,
    Target,
    arrivals,
    closed_loop,
    first_model,
    open_loop,
)
from tests.fakes.openai_server import Completions

T = TypeVar("T")


def with_target(
    url: str, use: Callable[[Target], Awaitable[T]], endpoint: Endpoint = "completions"
) -> T:
    async def go() -> T:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await use(Target(client, "fake", endpoint))

    return asyncio.run(go())


def send(
    url: str, request: Request, seconds: float = 10, endpoint: Endpoint = "completions"
) -> Outcome:
    async def use(target: Target) -> Outcome:
        now = asyncio.get_running_loop().time()
        return await target.send(request, now, now + seconds)

    return with_target(url, use, endpoint)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_counts_tokens_and_pieces(url: str, fake: Completions, endpoint: Endpoint) -> None:
    outcome = send(url, Request("one two", 5), endpoint=endpoint)
    assert outcome.error is None
    assert (outcome.input_tokens, outcome.output_tokens, len(outcome.arrivals)) == (7, 5, 5)
    assert outcome.started <= outcome.arrivals[0] <= outcome.arrivals[-1] <= outcome.ended
    assert fake.asked[0]["ignore_eos"] is True and fake.asked[0]["max_tokens"] == 5
    fake.broken, fake.breaks = "special", {1}
    outcome = send(url, Request("one two", 5), endpoint=endpoint)
    assert (outcome.error, outcome.output_tokens, len(outcome.arrivals)) == (None, 5, 1)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("refuse", "400: No."),
        ("error", "The worker was lost."),
        ("cut", "the stream ended without [DONE]"),
        ("silent", "not finished when the run's time was over"),
        ("empty", "no token came"),
    ],
)
def test_every_fault_is_an_error(url: str, fake: Completions, fault: str, error: str) -> None:
    fake.broken, fake.breaks = fault, {0}
    seconds = 0.3 if fault == "silent" else 60.0
    assert send(url, Request([1, 2], 3), seconds=seconds).error == error
    assert send(url, Request([1, 2], 3)).error is None


def test_a_server_that_is_gone_is_an_error() -> None:
    error = send("http://127.0.0.1:9", Request([1], 1)).error
    assert error is not None and error.startswith("ConnectError")


def test_a_closed_loop_keeps_its_concurrency(url: str, fake: Completions) -> None:
    fake.together = 4
    seen: list[Outcome] = []
    asked = [Request([i], 20) for i in range(12)]
    outcomes = with_target(url, lambda target: closed_loop(target, asked, 4, 60, seen.append))
    assert len(outcomes) == len(fake.asked) == 12 and seen == outcomes
    assert fake.most_running == 4


def test_a_closed_loop_stops_when_its_time_is_over(url: str, fake: Completions) -> None:
    asked = [Request([i], 1) for i in range(100)]
    outcomes = with_target(url, lambda t: closed_loop(t, asked, 2, 0.0, lambda outcome: None))
    assert outcomes == [] and fake.asked == []


def test_an_open_loop_sends_every_request_at_its_time(url: str) -> None:
    asked = [Request([1] * n, 2) for n in range(1, 6)]
    times = [0.0, 0.05, 0.1, 0.15, 0.2]
    outcomes = with_target(url, lambda t: open_loop(t, asked, times, 1, lambda outcome: None))
    assert [o.input_tokens for o in outcomes] == [1, 2, 3, 4, 5]
    gaps = [round(b.started - a.started, 6) for a, b in pairwise(outcomes)]
    assert gaps == [0.05] * 4


def test_arrivals_are_a_seeded_poisson_process() -> None:
    times = arrivals(50, 100, seed=3)
    assert times == sorted(times) == arrivals(50, 100, seed=3) != arrivals(50, 100, seed=4)
    assert times[0] > 0 and times[-1] < 100
    assert len(times) == pytest.approx(5000, rel=0.06)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance == pytest.approx(mean**2, rel=0.15)  # exponential: deviation equals mean


def test_first_model(url: str) -> None:
    assert with_target(url, lambda target: first_model(target.client)) == "fake"
    with pytest.raises(Unavailable, match="Start one with `baton serve`"):
        with_target("http://127.0.0.1:9", lambda target: first_model(target.client))
