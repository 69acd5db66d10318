"""Tiny trained models tell the colours and shapes of pictures that they have never seen, of one and
of the first or the second of two, through every service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fakes.whole_system import Whole, whole
from tests.support.tiny_dual_encoders import data_url
from tools import train_tiny_vlm
from tools.easy_vqa import Lesson, Talk, fetch
from tools.tiny_vlm_recipes import RECIPES

pytestmark = pytest.mark.slow
RIGHT = 0.95
COUNT = 300
AT_ONCE = 8


def trained(name: str) -> Path:
    """Folder of a checkpoint; skips the test where it has not been made."""
    folder = train_tiny_vlm.home() / name
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no model in {folder}: run python -m tools.train_tiny_vlm {name}")
    return folder


def content(lesson: Lesson, talk: Talk) -> list[dict[str, Any]]:
    urls = [data_url(lesson.picture(number)) for number in talk.pictures]
    seen = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*seen, {"type": "text", "text": talk.turns[0].question}]


async def answer(here: Whole, asking: asyncio.Semaphore, lesson: Lesson, talk: Talk) -> str:
    messages = [{"role": "user", "content": content(lesson, talk)}]
    body = {"model": here.model, "messages": messages, "temperature": 0, "max_tokens": 8}
    async with asking:
        said = await here.client.post("/v1/chat/completions", json=body)
    assert said.status_code == 200, said.text
    text: str = said.json()["choices"][0]["message"]["content"]
    return text


def shares(here: Whole, lesson: Lesson, talks: Sequence[Talk]) -> dict[str, float]:
    """Of right answers, by what is asked about."""

    async def ask() -> list[str]:
        asking = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(answer(here, asking, lesson, talk) for talk in talks))

    right, asked = Counter[str](), Counter[str]()
    for talk, said in zip(talks, here.run(ask), strict=True):
        [turn] = talk.turns
        right[turn.about] += said == turn.answer
        asked[turn.about] += 1
    return {about: right[about] / asked[about] for about in asked}


@pytest.mark.parametrize("name", RECIPES)
def test_colours_and_shapes_are_told(name: str) -> None:
    folder = trained(name)
    held_out = Lesson.read(fetch(folder.parent), "test")
    one = Random(0).sample(held_out.questions(), COUNT)
    two = held_out.questions_of_two(COUNT, Random(1))
    with whole(folder) as here:
        for talks in (one, two):
            found = shares(here, held_out, talks)
            assert set(found) == {"colour", "shape"} and min(found.values()) >= RIGHT, found
