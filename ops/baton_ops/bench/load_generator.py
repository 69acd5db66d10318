"""HTTP load generator: streams completions in a closed loop or with Poisson arrivals."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from baton.errors import Unavailable
from baton_ops.server_url import unavailable

GRACE_SECONDS = 60.0
"""Seconds that requests may continue after the last one was sent."""
Endpoint = Literal["completions", "chat"]


@dataclass(frozen=True)
class Request:
    """One completion request for exactly `output_tokens` tokens; end-of-sequence is ignored."""

    prompt: str | list[int]
    output_tokens: int
    images: tuple[str, ...] = ()
    """URLs of images before the text of a chat."""


@dataclass
class Outcome:
    """Result of one request. Times are in seconds of the event loop's clock."""

    started: float
    """Scheduled start; includes waiting for a free connection."""
    arrivals: list[float] = field(default_factory=list)
    """Arrival time of each chunk."""
    input_tokens: int = 0
    output_tokens: int = 0
    ended: float = 0.0
    error: str | None = None


class Target:
    """A model on an OpenAI-compatible server."""

    def __init__(self, client: httpx.AsyncClient, model: str, endpoint: Endpoint) -> None:
        self.client = client
        self.model = model
        self.endpoint: Endpoint = endpoint

    def _ask(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the path and the body."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "completions":
            return "/v1/completions", {**body, "prompt": request.prompt}
        messages = [{"role": "user", "content": _content(request)}]
        return "/v1/chat/completions", {**body, "messages": messages}

    async def send(self, request: Request, started: float, deadline: float) -> Outcome:
        """Stream one completion to its end. Errors are stored in `error`, not raised."""
        outcome = Outcome(started)
        path, body = self._ask(request)
        try:
            async with (
                asyncio.timeout_at(deadline),
                self.client.stream("POST", path, json=body) as answer,
            ):
                if answer.status_code == 200:
                    await _follow(answer.aiter_lines(), outcome)
                else:
                    outcome.error = _reason(answer.status_code, await answer.aread())
        except TimeoutError:
            outcome.error = "not finished when the run's time was over"
        except (httpx.HTTPError, ValueError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.ended = asyncio.get_running_loop().time()
        return outcome


def _content(request: Request) -> Any:
    """The content of a chat's message."""
    if not request.images:
        return request.prompt
    images = [{"type": "image_url", "image_url": {"url": url}} for url in request.images]
    return [*images, {"type": "text", "text": request.prompt}]


async def _follow(lines: AsyncIterator[str], outcome: Outcome) -> None:
    """Read server-sent events into `outcome` until `[DONE]`."""
    clock = asyncio.get_running_loop().time
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            _close(outcome, clock())
            return
        _take(json.loads(data), clock(), outcome)
        if outcome.error is not None:
            return
    outcome.error = "the stream ended without [DONE]"


def _take(event: dict[str, Any], now: float, outcome: Outcome) -> None:
    if "error" in event:
        outcome.error = str(event["error"].get("message", event["error"]))
    if usage := event.get("usage"):
        outcome.input_tokens = usage["prompt_tokens"]
        outcome.output_tokens = usage["completion_tokens"]
    for choice in event.get("choices", []):
        text = choice.get("text") or choice.get("delta", {}).get("content")
        if text or not (choice.get("finish_reason") or "role" in choice.get("delta", {})):
            outcome.arrivals.append(now)


def _close(outcome: Outcome, now: float) -> None:
    if not outcome.arrivals and outcome.output_tokens:
        outcome.arrivals.append(now)  # Special tokens alone: they have no text.
    if not outcome.arrivals:
        outcome.error = "no token came"
    outcome.output_tokens = outcome.output_tokens or len(outcome.arrivals)


def _reason(status: int, body: bytes) -> str:
    try:
        return f"{status}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"


async def closed_loop(
    target: Target,
    requests: Iterable[Request],
    concurrency: int,
    seconds: float,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Keep `concurrency` requests in flight; send no more after `seconds`."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    waiting = iter(requests)
    outcomes: list[Outcome] = []

    async def slot() -> None:
        for request in waiting:  # the iterator is shared by all slots
            if clock() >= end:
                return
            outcomes.append(await target.send(request, clock(), end + GRACE_SECONDS))
            done(outcomes[-1])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(slot())
    return outcomes


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the arrival times of a Poisson process of `rate` per second, in seconds from the
    start."""
    chance = random.Random(seed)
    times: list[float] = []
    at = chance.expovariate(rate)
    while at < seconds:
        times.append(at)
        at += chance.expovariate(rate)
    return times


async def open_loop(
    target: Target,
    requests: Sequence[Request],
    times: Sequence[float],
    seconds: float,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Send each request at its time, regardless of the number in flight.

    Latencies count from the scheduled time, so a slow server cannot delay the measurement
    (coordinated omission).
    """
    clock = asyncio.get_running_loop().time
    start = clock()

    async def arrive(request: Request, at: float) -> Outcome:
        await asyncio.sleep(max(0.0, start + at - clock()))
        outcome = await target.send(request, start + at, start + seconds + GRACE_SECONDS)
        done(outcome)
        return outcome

    pairs = zip(requests, times, strict=True)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(arrive(request, at)) for request, at in pairs]
    return [task.result() for task in tasks]


async def first_model(client: httpx.AsyncClient) -> str:
    """Return the first model that the server lists. Raises `Unavailable` when there is none."""
    try:
        answer = await client.get("/v1/models")
        models = answer.raise_for_status().json()["data"]
    except httpx.HTTPError as error:
        raise unavailable(client.base_url, error) from error
    if not models:
        raise Unavailable("The server has no model yet: try again in a moment.")
    return str(models[0]["id"])
