"""Prompts have the requested length, whichever token counts the server supports."""

from __future__ import annotations

import asyncio
from itertools import islice

import httpx
import pytest

from baton.errors import InvalidRequest
from baton_ops.bench.load_generator import Endpoint, Target
from baton_ops.bench.prompts import (
    IdPrompts,
    Lengths,
    Prompts,
    TextPrompts,
    prompts_for,
    requests,
)
from tests.fakes.openai_server import Completions


def choose(url: str, endpoint: Endpoint = "completions") -> Prompts:
    async def go() -> Prompts:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return await prompts_for(Target(client, "fake", endpoint), seed=1)

    return asyncio.run(go())


def test_ids_where_the_server_takes_them(url: str) -> None:
    prompts = choose(url)
    assert isinstance(prompts, IdPrompts)
    first, second = prompts.make(40), prompts.make(40)
    assert len(first) == len(second) == 40 and first != second
    assert set(first) <= set(range(11, 30))


@pytest.mark.parametrize("lacks", ["ids", "tokenize", "completions"])
def test_words_of_measured_cost_elsewhere(url: str, fake: Completions, lacks: str) -> None:
    fake.takes_ids = lacks != "ids"
    fake.tokenizes = lacks != "tokenize"
    prompts = choose(url, "chat" if lacks == "completions" else "completions")
    assert isinstance(prompts, TextPrompts)
    assert 2 * len(prompts.make(103).split()) + 3 == 103
    assert prompts.make(1)


def test_a_server_that_refuses_everything_is_told(url: str, fake: Completions) -> None:
    fake.breaks = set(range(10))
    with pytest.raises(InvalidRequest, match="--endpoint"):
        choose(url)


def test_fixed_and_mixed_lengths() -> None:
    assert list(islice(Lengths("fixed", 128, 64).pairs(0), 3)) == [(128, 64)] * 3
    mixed = list(islice(Lengths("mixed", 128, 64).pairs(5), 2000))
    assert mixed == list(islice(Lengths("mixed", 128, 64).pairs(5), 2000))
    inputs, outputs = sorted(i for i, _ in mixed), sorted(o for _, o in mixed)
    assert (inputs[0], inputs[-1], outputs[0], outputs[-1]) == (16, 512, 8, 256)
    assert inputs[1000] == pytest.approx(128, rel=0.1)
    assert min(o for _, o in islice(Lengths("mixed", 1, 1).pairs(5), 100)) == 1


def test_requests_carry_both_lengths() -> None:
    made = requests(IdPrompts([1, 2, 3], 0), Lengths("mixed", 20, 10), 50, seed=2)
    wanted = list(islice(Lengths("mixed", 20, 10).pairs(2), 50))
    assert [(len(r.prompt), r.output_tokens) for r in made] == wanted
