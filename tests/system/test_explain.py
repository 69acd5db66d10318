"""Where the time went, over the real tokenizer, scheduler and worker: it is the time it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.whole_system import RealScheduler, Whole, whole
from tests.support.tiny_models import save_model

LONG = 200


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Pages for one and a half long answers."""
    folder = save_model(tmp_path_factory.mktemp("narrow"))
    with whole(folder, worker={"num_gpu_blocks_override": 20, "block_size": 16}) as here:
        yield here


Timed = tuple[Any, float]
"""A response, and milliseconds until it was there."""


async def timed(here: Whole, **fields: Any) -> Timed:
    body = {
        "model": here.model,
        "prompt": "once upon a time",
        "max_tokens": LONG,
        "temperature": 0,
        "ignore_eos": True,
    }
    started_at = time.monotonic()
    response = await here.client.post("/v1/completions", json=body | fields)
    return response, 1000 * (time.monotonic() - started_at)


def scheduler_of(here: Whole) -> RealScheduler:
    scheduler = here.engine.scheduler
    assert isinstance(scheduler, RealScheduler)
    return scheduler


def explained(here: Whole, timed: Timed) -> dict[str, Any]:
    response, wall = timed
    assert response.status_code == 200, response.text
    told: dict[str, Any] = here.get(f"/v1/requests/{response.json()['id']}/explain").json()
    assert sum(part["ms"] for part in told["causes"]) == pytest.approx(told["wall_ms"], abs=1)
    assert 0 < told["wall_ms"] <= wall  # Its client waited at least so long.
    assert told["unattributed_ms"] == 0
    return told | {part["cause"]: part["ms"] for part in told["causes"]}


def test_the_causes_add_up_to_the_time_that_it_took(narrow: Whole) -> None:
    told = explained(narrow, narrow.run(lambda: timed(narrow)))
    assert told["decode"] > 0.5 * told["wall_ms"] > told["prefill"] > 0
    (run,) = told["choices"]
    assert (run["preemptions"], run["shared_with"]) == (0, 0.0)


def test_one_that_made_room_says_so(narrow: Whole) -> None:
    both = narrow.together([timed(narrow, seed=n) for n in range(2)])
    first, second = (explained(narrow, one) for one in both)
    assert scheduler_of(narrow).state.counters.preemptions > 0
    preempted = max(first, second, key=lambda told: told["choices"][0]["preemptions"])
    other = min(first, second, key=lambda told: told["choices"][0]["preemptions"])
    assert other["choices"][0]["preemptions"] == 0 and "preempted" not in other
    assert preempted["preempted"] > 0 and preempted["wall_ms"] > other["wall_ms"]
    assert 0 < preempted["choices"][0]["shared_with"] < 1


def test_waiting_for_a_place_is_told_apart_from_the_prefill(narrow: Whole) -> None:
    scheduler = scheduler_of(narrow)

    async def later() -> Timed:
        scheduler.hold = True
        asking = asyncio.create_task(timed(narrow, prompt="a river", max_tokens=40))
        while scheduler.state.idle:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.3)
        scheduler.hold = False
        scheduler.go_on()
        return await asking

    told = explained(narrow, narrow.run(later))
    assert told["queue"] > 295


def test_several_choices_wait_for_the_last(narrow: Whole) -> None:
    told = explained(narrow, narrow.run(lambda: timed(narrow, n=3, max_tokens=60)))
    lives = [sum(run[name] for name in run if name.endswith("_ms")) for run in told["choices"]]
    assert len(lives) == 3 and lives[told["choice"]] == pytest.approx(max(lives), abs=1)


def test_a_beam_search_is_one_cause(narrow: Whole) -> None:
    fields = {"use_beam_search": True, "n": 2, "max_tokens": 12}
    told = explained(narrow, narrow.run(lambda: timed(narrow, **fields)))
    assert told["beam_search"] > 0.5 * told["wall_ms"] and told["choices"] == []
