"""Streams whose every token is known beforehand, read by a client that does not give up."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from baton.protocol import Sampling
from baton.tokens import derive_seed
from tests.fakes.worker import expected_tokens

Verdict = Literal["whole", "lost", "wrong", "duplicated", "silent", "error"]
_AGAIN_SECONDS = 0.1
_PATIENCE_SECONDS = 30.0
"""How long a stream may stand still before it counts as silent."""
_SHAPE = {"message", "type", "param", "code"}


@dataclass
class Outcome:
    """What became of one request."""

    verdict: Verdict
    stalls: list[float] = field(default_factory=list)
    """Seconds between its events, the longest first."""
    resumed: int = 0
    """Times that its connection broke and was taken up again."""
    detail: str = ""


@dataclass(frozen=True)
class Asked:
    """One request of the load."""

    prompt: list[int]
    max_tokens: int
    seed: int

    @classmethod
    def any(cls, chance: random.Random, vocab: int) -> Asked:
        """A short prompt, some of which begin alike, and an answer of some length."""
        shared = [chance.randrange(4) + 3] * 40
        own = [chance.randrange(3, vocab) for _ in range(chance.randrange(1, 60))]
        return cls(shared + own, chance.randrange(40, 160), chance.randrange(2**31))

    def expected(self, vocab: int) -> list[int]:
        """Every token of the answer."""
        sampling = Sampling(self.max_tokens, derive_seed(self.seed, 0))
        return expected_tokens(self.prompt, sampling, vocab)[0]

    def body(self, model: str) -> dict[str, Any]:
        """As a completion request."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }


class Reader:
    """One durable stream: reads it, and resumes it after its last event when the line breaks."""

    def __init__(self, client: httpx.AsyncClient, model: str, asked: Asked) -> None:
        self._client, self._model, self._asked = client, model, asked
        self.tokens: list[int] = []
        self.last = ""
        """Id of the last event."""
        self.reason = ""
        self.error = ""
        self.finished = False
        self.resumed = 0
        self.stalls: list[float] = []
        self._heard = time.monotonic()

    async def read(self) -> None:
        """Until the end, an error, or patience is over."""
        while not (self.finished or self.error):
            if time.monotonic() - self._heard > _PATIENCE_SECONDS:
                return
            try:
                await self._attempt()
            except httpx.TransportError:
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _attempt(self) -> None:
        async with self._open() as answer:
            if answer.status_code == 200:
                self.resumed += bool(self.last)
                async for line in answer.aiter_lines():
                    self._line(line)
            elif answer.status_code != 204:
                await self._refused(answer)
        if not (self.finished or self.error):
            raise httpx.ReadError("the stream ends before its end")

    def _open(self) -> Any:
        if not self.last:
            body, headers = self._asked.body(self._model), {"X-Stream-Durable": "1"}
            return self._client.stream("POST", "/v1/completions", json=body, headers=headers)
        name = self.last.rpartition(":")[0]
        headers = {"Last-Event-ID": self.last}
        return self._client.stream("GET", f"/v1/streams/{name}", headers=headers)

    async def _refused(self, answer: httpx.Response) -> None:
        """An error is clean when it has OpenAI's shape. What is only busy is asked again."""
        error = json.loads(await answer.aread()).get("error", {})
        if answer.status_code in (429, 503):
            await asyncio.sleep(_AGAIN_SECONDS)
            return
        assert set(error) >= _SHAPE, error
        self.error = error["message"]

    def _line(self, line: str) -> None:
        if line.startswith("id: "):
            self.last = line.removeprefix("id: ")
        elif line == "data: [DONE]":
            self.finished = True
        elif line.startswith("data: "):
            self._event(json.loads(line.removeprefix("data: ")))

    def _event(self, event: dict[str, Any]) -> None:
        now = time.monotonic()
        self.stalls.append(now - self._heard)
        self._heard = now
        if "error" in event:
            assert set(event["error"]) >= _SHAPE, event
            self.error = event["error"]["message"]
            return
        for choice in event["choices"]:
            self.tokens += choice["token_ids"]
            self.reason = choice["finish_reason"] or self.reason


async def ask(client: httpx.AsyncClient, model: str, asked: Asked, vocab: int) -> Outcome:
    """Run one request to its end and judge it against what its tokens must be."""
    reader = Reader(client, model, asked)
    await reader.read()
    stalls = sorted(reader.stalls, reverse=True)
    verdict = _judge(reader, asked.expected(vocab))
    detail = reader.error or f"{len(reader.tokens)} tokens, {reader.last}"
    return Outcome(verdict, stalls, reader.resumed, detail)


def _judge(reader: Reader, expected: list[int]) -> Verdict:
    tokens = reader.tokens
    if tokens != expected[: len(tokens)]:
        again = any(tokens[i : i + 3] == tokens[i - 3 : i] for i in range(3, len(tokens) - 2))
        return "duplicated" if again or len(tokens) > len(expected) else "wrong"
    if reader.error:
        return "error"
    if not reader.finished or not reader.reason:
        return "silent"
    return "whole" if len(tokens) == len(expected) else "lost"


async def load(
    client: httpx.AsyncClient, model: str, vocab: int, streams: int, until: float, seed: int
) -> AsyncIterator[Outcome]:
    """Keep so many streams running until a moment of the monotonic clock, then let them end."""
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    async def one(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        while time.monotonic() < until:
            outcomes.put_nowait(await ask(client, model, Asked.any(chance, vocab), vocab))

    running = asyncio.gather(*(one(number) for number in range(streams)))
    while not running.done() or not outcomes.empty():
        try:
            yield await asyncio.wait_for(outcomes.get(), 0.2)
        except TimeoutError:
            continue
    await running
