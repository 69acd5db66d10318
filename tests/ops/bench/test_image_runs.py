"""What images cost: new and known ones, and text streams beside them, against a mock server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from baton.errors import InvalidRequest, Unavailable
from baton_ops.bench import image_runs
from baton_ops.bench.image_runs import ImageRuns, Load, Repeated, Storm
from baton_ops.bench.load_generator import Target
from baton_ops.bench.prompts import TextPrompts
from tests.fakes.openai_server import Completions


def images_of(body: dict[str, Any]) -> list[str]:
    content = body["messages"][0]["content"]
    return [] if isinstance(content, str) else [part["image_url"]["url"] for part in content[:-1]]


def run(
    url: str, call: Callable[[ImageRuns], Coroutine[Any, Any, Any]], output_len: int = 4
) -> Any:
    async def measured() -> Any:
        async with httpx.AsyncClient(base_url=url) as client:
            target, prompts = Target(client, "fake", "chat"), TextPrompts(2.0, 3.0, 0)
            return await call(ImageRuns(target, prompts, Load(8, output_len, (16, 16))))

    return asyncio.run(measured())


def test_known_images_are_sent_again_under_another_text(
    url: str, fake: Completions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_runs, "_STATS_SECONDS", 0.0)

    def fleet() -> dict[str, int]:
        known = {image for body in fake.asked for image in images_of(body)}
        return {"media_encoded": len(known), "media_encoded_locally": 0}

    fake.app.get("/fleet")(fleet)
    found: Repeated = run(url, lambda runs: runs.repeated(2, 2))
    assert found.encoder_runs == 0 and len(found.cold) == len(found.warm) == 2
    assert found.ratio > 0
    first, again, other, _ = fake.asked
    assert images_of(first) == images_of(again) and len(set(images_of(first))) == 2
    assert first != again and not set(images_of(first)) & set(images_of(other))


def test_new_images_are_all_different(url: str, fake: Completions) -> None:
    assert len(run(url, lambda runs: runs.cold(3, 4))) == 3
    assert len({image for body in fake.asked for image in images_of(body)}) == 12
    fake.breaks = {4}
    with pytest.raises(Unavailable, match="No"):
        run(url, lambda runs: runs.cold(3, 4))


def test_text_streams_are_measured_alone_and_beside_images(url: str, fake: Completions) -> None:
    found: Storm = run(url, lambda runs: runs.storm(2, 3, 2))
    assert len(found.alone) == len(found.beside) == 2 * 3 * (4 - 1)
    assert min(found.p99) >= 0 and found.images_per_second > 0
    assert sum(not images_of(body) for body in fake.asked) == 2 * 2 * 3
    first = next(n for n, body in enumerate(fake.asked) if images_of(body))
    assert first == 3, "the streams alone come first"


def test_streams_of_one_token_have_no_time_between_tokens(url: str, fake: Completions) -> None:
    with pytest.raises(InvalidRequest, match="--output-len"):
        run(url, lambda runs: runs.storm(1, 2, 1), output_len=1)


def test_a_failing_image_ends_the_storm(url: str, fake: Completions) -> None:
    fake.breaks = {3}  # behind the three streams without images
    with pytest.raises(Unavailable, match="No"):
        run(url, lambda runs: runs.storm(1, 3, 1))
