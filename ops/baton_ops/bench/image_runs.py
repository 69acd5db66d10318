"""Measures the first token with new and with repeated images, and the pauses of text streams during
requests with images."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median

import httpx
import numpy as np

from baton.errors import InvalidRequest, Unavailable
from baton_ops.bench.images import Images
from baton_ops.bench.load_generator import Outcome, Request, Target, closed_loop
from baton_ops.bench.prompts import Prompts

_RUN_SECONDS = 600.0
"""Seconds after which a run sends no more requests."""
_STATS_SECONDS = 3.0
"""Longer than the scheduler's interval of statistics."""


@dataclass(frozen=True)
class Load:
    """Request parameters."""

    input_len: int
    """Text tokens."""
    output_len: int
    """Output tokens of a text stream; requests with images have one."""
    image_size: tuple[int, int]
    """Pixels: width, height."""
    seed: int = 0


@dataclass(frozen=True)
class Repeated:
    """Seconds to the first token of the same images with two texts, request by request."""

    cold: list[float]
    """With images that are new to the server."""
    warm: list[float]
    """With the same images again."""
    encoder_runs: int
    """Number of images that were encoded for the second requests."""

    @property
    def ratio(self) -> float:
        """Ratio of the medians."""
        return median(self.warm) / median(self.cold)


@dataclass(frozen=True)
class Storm:
    """Seconds between two chunks of text streams, over all rounds."""

    alone: list[float]
    beside: list[float]
    """During requests with new images."""
    images_per_second: float

    @property
    def p99(self) -> tuple[float, float]:
        """Seconds: without, and during requests with images."""
        alone, beside = (float(np.percentile(gaps, 99)) for gaps in (self.alone, self.beside))
        return alone, beside


class ImageRuns:
    """Runs against one server. Every method raises `Unavailable` when a request fails."""

    def __init__(self, target: Target, prompts: Prompts, load: Load) -> None:
        self._target, self._prompts, self._load = target, prompts, load
        self._images = Images(1, load.image_size, 0, load.seed)

    async def warm_up(self) -> None:
        """Send unmeasured requests, so that lazy initialisation is not measured."""
        for _ in range(2):
            await self._first_token(self._new_images(1))

    async def cold(self, requests: int, images: int) -> list[float]:
        """Seconds to the first token of requests with this number of new images, one after the
        other."""
        return [await self._first_token(self._new_images(images)) for _ in range(requests)]

    async def repeated(self, requests: int, images: int) -> Repeated:
        """Run this number of pairs of requests."""
        cold, again = list[float](), list[float]()
        num_encoded = await encoder_runs(self._target.client)
        for _ in range(requests):
            shown = self._new_images(images)
            cold.append(await self._first_token(shown))
            again.append(await self._first_token(shown))
        encoded = await encoder_runs(self._target.client) - num_encoded
        return Repeated(cold, again, encoded - requests * images)

    async def storm(self, rounds: int, streams: int, in_flight: int) -> Storm:
        """Run text streams without and during this number of requests with an image, in alternating
        rounds."""
        alone, beside = list[float](), list[float]()
        num_requests, seconds = 0, 0.0
        clock = asyncio.get_running_loop().time
        for _ in range(rounds):
            alone += await self._gaps(streams)
            async with self._shower(in_flight) as answered:
                started = clock()
                beside += await self._gaps(streams)
                num_requests, seconds = num_requests + len(answered), seconds + clock() - started
        return Storm(alone, beside, num_requests / seconds)

    def _new_images(self, count: int) -> tuple[str, ...]:
        return tuple(url for _ in range(count) for url in self._images.next())

    async def _first_token(self, images: Sequence[str]) -> float:
        text = self._prompts.make(self._load.input_len)
        now = asyncio.get_running_loop().time()
        outcome = await self._target.send(Request(text, 1, tuple(images)), now, now + _RUN_SECONDS)
        _check([outcome])
        return outcome.arrivals[0] - outcome.started

    async def _gaps(self, streams: int) -> list[float]:
        load = self._load
        text_requests = [
            Request(self._prompts.make(load.input_len), load.output_len) for _ in range(streams)
        ]
        ended = await closed_loop(
            self._target, text_requests, streams, _RUN_SECONDS, lambda outcome: None
        )
        _check(ended)
        gaps = [float(gap) for outcome in ended for gap in np.diff(outcome.arrivals)]
        if not gaps:
            raise InvalidRequest(
                "No stream of text had two tokens with text, so there is no time between them: "
                "take a model whose answers are longer, or a larger --output-len."
            )
        return gaps

    @asynccontextmanager
    async def _shower(self, in_flight: int) -> AsyncIterator[list[float]]:
        """Keep requests with new images in flight; yields their times to the first token."""
        answered = list[float]()

        async def slot() -> None:
            while True:
                answered.append(await self._first_token(self._new_images(1)))

        slots = [asyncio.create_task(slot()) for _ in range(in_flight)]
        try:
            while not any(each.done() for each in slots) and not answered:
                await asyncio.sleep(0.01)
            yield answered
        finally:
            failed = [each for each in slots if each.done()]
            for each in slots:
                each.cancel()
            await asyncio.gather(*slots, return_exceptions=True)
        for each in failed:
            each.result()


async def encoder_runs(client: httpx.AsyncClient) -> int:
    """Images encoded by workers of any role since the scheduler's start. The number is reported at
    intervals, so poll until it does not change."""
    last = -1
    while True:
        fleet = (await client.get("/fleet")).raise_for_status().json()
        runs = int(fleet["media_encoded"] + fleet["media_encoded_locally"])
        if runs == last:
            return runs
        last = runs
        await asyncio.sleep(_STATS_SECONDS)


def _check(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            raise Unavailable(f"A request of the benchmark failed: {outcome.error}")
