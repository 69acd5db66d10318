"""Work that outlives the connection of its client: batches, responses in the background, and tool
calls that are asked for again under an Idempotency-Key. The client is OpenAI's own."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
from openai import APIError, AsyncOpenAI

from tests.chaos.streams import Asked, Oracle, Outcome, Verdict

_RETRIES = 40
"""Of the client by itself: as long as everything takes to come back, and longer."""
_LOOK_SECONDS = 0.5
_SETTLE_SECONDS = 180.0
"""How long the last job may take once nothing breaks any more."""
_KNOWN = 4
"""Different requests of a kind whose answers are asked for before anything breaks."""
_WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 99},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class JobCounts(NamedTuple):
    """How much of each there is."""

    batch_lines: int = 0
    background: int = 0
    """Responses in the background."""
    tool_calls: int = 0
    """Streams that call a tool, at a time."""


Known = list[tuple[int, str]]
"""Seeds, and the text that a request with each must have."""


class Jobs:
    """Life cycle: `learn` while nothing is broken, `run` under faults, `close`."""

    def __init__(self, url: str, model: str, counts: JobCounts, seed: int) -> None:
        # A connection of its own for each request, as in `run` of the streams.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=_RETRIES,
            timeout=30.0,
            http_client=httpx.AsyncClient(limits=limits),
        )
        self._model, self._counts, self._seed = model, counts, seed
        self._texts: Known = []
        self._calls: Known = []

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def learn(self) -> None:
        """Ask for what the requests must have as answers."""
        seeds = range(_KNOWN)
        if self._counts.background:
            self._texts = [(seed, await self._response(seed)) for seed in seeds]
        if self._counts.tool_calls:
            self._calls = [(seed, await self._arguments(seed, "")) for seed in seeds]

    async def run(self, draw: Oracle, until: float) -> dict[str, list[Outcome]]:
        """Run all jobs: streams with tool calls until a moment of the monotonic clock, the others
        to their ends. Returns what became of each, by kind."""
        chance = random.Random(self._seed)
        lines = [draw(chance) for _ in range(self._counts.batch_lines)]
        background = range(self._counts.background)
        deadline = until + _SETTLE_SECONDS - time.monotonic()
        async with asyncio.timeout(deadline):
            batch, responses, calls = await asyncio.gather(
                self._batch(lines),
                asyncio.gather(*(self._background(number) for number in background)),
                asyncio.gather(*(self._call(n, until) for n in range(self._counts.tool_calls))),
            )
        found = {"batch lines": batch, "background responses": list(responses)}
        found["tool calls"] = [outcome for some in calls for outcome in some]
        return {kind: outcomes for kind, outcomes in found.items() if outcomes}

    # Batches.

    async def _batch(self, lines: Sequence[tuple[Asked, list[int]]]) -> list[Outcome]:
        if not lines:
            return []
        started = time.monotonic()
        file = b"\n".join(self._line(n, asked) for n, (asked, _) in enumerate(lines))
        upload = await self._client.files.create(file=("lines.jsonl", file), purpose="batch")
        batch = await self._client.batches.create(
            input_file_id=upload.id, endpoint="/v1/completions", completion_window="24h"
        )
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            await asyncio.sleep(_LOOK_SECONDS)
            batch = await self._client.batches.retrieve(batch.id)
        answers = [
            line
            for name in (batch.output_file_id, batch.error_file_id)
            if name is not None
            for line in (await self._client.files.content(name)).text.splitlines()
        ]
        return _judged_lines(lines, answers, started)

    def _line(self, number: int, asked: Asked) -> bytes:
        body = asked.body(self._model)
        del body["stream"]
        line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        return json.dumps(line).encode()

    # Responses in the background.

    async def _background(self, number: int) -> Outcome:
        seed, wanted = self._texts[number % len(self._texts)]
        key = f"background-{self._seed}-{number}"
        return await _judged(partial(self._response, seed, key), wanted)

    async def _response(self, seed: int, key: str = "") -> str:
        """Begin a response in the background, under a key if there is one, and poll its end."""
        said = await self._client.responses.create(
            model=self._model,
            input=f"Question {seed}",
            background=True,
            max_output_tokens=60,
            extra_body={"seed": seed, "ignore_eos": True},
            extra_headers={"Idempotency-Key": key} if key else {},
        )
        while said.status in ("queued", "in_progress"):
            await asyncio.sleep(_LOOK_SECONDS)
            said = await self._client.responses.retrieve(said.id)
        return f"{said.status}: {said.output_text}"

    # Streams that call a tool.

    async def _call(self, number: int, until: float) -> list[Outcome]:
        outcomes, count = list[Outcome](), 0
        while time.monotonic() < until:
            seed, wanted = self._calls[(number + count) % len(self._calls)]
            key, count = f"call-{self._seed}-{number}-{count}", count + 1
            outcomes.append(await _judged(partial(self._whole_call, seed, key), wanted))
        return outcomes

    async def _whole_call(self, seed: int, key: str) -> str:
        """A call, from as many attempts under one key as it takes until a stream has its end."""
        while True:
            try:
                return await self._arguments(seed, key)
            except (httpx.TransportError, APIError):
                await asyncio.sleep(_LOOK_SECONDS / 5)

    async def _arguments(self, seed: int, key: str) -> str:
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": f"Question {seed}"}],
            tools=[_WEATHER],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            stream=True,
            max_completion_tokens=200,
            seed=seed,
            extra_headers={"Idempotency-Key": key} if key else {},
        )
        text, reason = "", None
        async for part in _choices(stream):
            text += "".join(call.function.arguments or "" for call in part.delta.tool_calls or ())
            reason = part.finish_reason or reason
        if reason is None:
            raise httpx.ReadError("the stream ends before its end")
        assert set(json.loads(text)) == {"city", "days"}, text
        return text


async def _choices(stream: Any) -> AsyncIterator[Any]:
    async with stream:
        async for event in stream:
            for choice in event.choices:
                yield choice


async def _judged(answer: Callable[[], Awaitable[str]], wanted: str) -> Outcome:
    started = time.monotonic()
    verdict: Verdict
    try:
        found = await answer()
        verdict = "whole" if found == wanted else "wrong"
    except APIError as error:
        verdict, found = "error", str(error)
    return Outcome(verdict, started, time.monotonic(), detail=f"{found} of {wanted}")


def _judged_lines(
    lines: Sequence[tuple[Asked, list[int]]], answers: Sequence[str], started: float
) -> list[Outcome]:
    """Of each line of a batch what its answers are worth: exactly one must be there."""
    read = [json.loads(answer) for answer in answers]
    times = Counter(answer["custom_id"] for answer in read)
    errors = {answer["custom_id"]: str(answer.get("error") or answer) for answer in read}
    tokens = {answer["custom_id"]: _tokens(answer) for answer in read}
    outcomes = []
    for number, (_, wanted) in enumerate(lines):
        name = str(number)
        verdict: Verdict = (
            "lost" if not times[name] else "duplicated" if times[name] > 1 else "whole"
        )
        if verdict == "whole" and (found := tokens[name]) != wanted:
            verdict = "error" if found is None else "wrong"
        detail = f"line {name}: {errors[name]}" if verdict == "error" else f"line {name}"
        outcomes.append(Outcome(verdict, started, time.monotonic(), detail=detail))
    return outcomes


def _tokens(answer: dict[str, Any]) -> list[int] | None:
    """The tokens of an answer; None for an error."""
    body = (answer["response"] or {}).get("body", {})
    found: list[int] | None = body["choices"][0]["token_ids"] if "choices" in body else None
    return found
