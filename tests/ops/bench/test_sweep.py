"""Sweeps against a mock server that counts requests."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import pytest
from rich.console import Console

from baton.errors import SettingsError, Unavailable
from baton_ops.bench.load_generator import Target
from baton_ops.bench.progress import ProgressBars
from baton_ops.bench.prompts import prompts_for
from baton_ops.bench.sweep import (
    Point,
    Sweep,
    Usual,
    ascending,
)
from tests.fakes.openai_server import Completions

T = TypeVar("T")


def swept(url: str, usual: Usual, then: Callable[[Sweep], Awaitable[T]]) -> T:
    async def work() -> T:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            target = Target(client, "fake", "completions")
            with ProgressBars(Console(file=io.StringIO())) as bars:
                return await then(Sweep(target, await prompts_for(target, 0), bars, usual))

    return asyncio.run(work())


def asked(fake: Completions) -> list[tuple[int, int]]:
    """(tokens of the prompt, of the answer) of each request, but for the probe."""
    return [(len(body["prompt"]), body["max_tokens"]) for body in fake.asked[1:]]


def test_loads_keep_so_many_in_flight(url: str, fake: Completions) -> None:
    async def loads(sweep: Sweep) -> list[Point]:
        fake.together = 4  # None is answered before so many are there.
        return await sweep.loads((4, 6))

    points = swept(url, Usual(8, 3, 2), loads)
    assert [point.level for point in points] == [4, 6]
    assert [point.summary.successful for point in points] == [8, 12]
    assert asked(fake) == [(8, 3)] * 20 and 4 <= fake.most_running <= 6


def test_contexts_are_asked_one_at_a_time(url: str, fake: Completions) -> None:
    points = swept(url, Usual(8, 3, 2), lambda sweep: sweep.contexts((16, 32), None))
    assert [point.level for point in points] == [16, 32]
    assert asked(fake) == [(16, 3), (16, 3), (32, 3), (32, 3)] and fake.most_running == 1


def test_no_context_is_longer_than_the_model_takes(url: str, fake: Completions) -> None:
    points = swept(url, Usual(8, 4, 1), lambda sweep: sweep.contexts((16, 32, 64, 128), 40))
    assert [point.level for point in points] == [16, 32, 36]
    assert asked(fake) == [(16, 4), (32, 4), (36, 4)]
    with pytest.raises(SettingsError, match="'context' needs two or more ascending levels, not 12"):
        swept(url, Usual(8, 4, 1), lambda sweep: sweep.contexts((16, 32), 16))


def test_a_failed_request_ends_it(url: str, fake: Completions) -> None:
    fake.breaks = {3}
    with pytest.raises(Unavailable, match=r"2 in flight: 1 of 2 failed: 400: No\."):
        swept(url, Usual(8, 3, 1), lambda sweep: sweep.loads((1, 2, 4)))


def test_prompts_differ_but_not_between_two_sweeps(url: str, fake: Completions) -> None:
    for _ in range(2):
        swept(url, Usual(32, 2, 1), lambda sweep: sweep.loads((1, 2)))
    prompts = [tuple(body["prompt"]) for body in fake.asked if len(body["prompt"]) == 32]
    assert len(set(prompts)) == 3 and sorted(prompts[:3]) == sorted(prompts[3:])


def test_levels_ascend() -> None:
    assert ascending([1, 3], "workers") == (1, 3)
    for levels in ([], [4], [1, 1], [2, 1]):
        with pytest.raises(SettingsError, match="two or more ascending"):
            ascending(levels, "workers")
