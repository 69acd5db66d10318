"""Streams with known tokens, read by a client that reconnects."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import httpx

from baton.protocol import Sampling
from baton.protocol.token_columns import derive_seed
from tests.fakes.hash_worker import expected_tokens

Verdict = Literal["whole", "lost", "wrong", "duplicated", "silent", "error"]
_AGAIN_SECONDS = (0.05, 0.15)
"""Bounds of the wait before another attempt. Long enough that a client who is refused does not keep
the server busy, short beside what it waits for; and not the same for all, because what takes the
line of one takes those of many at the same moment."""
_PATIENCE_SECONDS = 30.0
"""How long a stream may stand still before it counts as silent."""
_SHAPE = {"message", "type", "param", "code"}
_WORTH_SECONDS = 0.05
"""Shorter pauses are not remembered."""


class Pause(NamedTuple):
    """Between two events of a stream, or before its first; by the monotonic clock."""

    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.started


@dataclass
class Outcome:
    """What became of one request."""

    verdict: Verdict
    started: float = 0.0
    ended: float = 0.0
    """Both by the monotonic clock."""
    pauses: list[Pause] = field(default_factory=list)
    """All that are worth a word."""
    tokens: int = 0
    resumed: int = 0
    """Times that its connection broke and was taken up again."""
    detail: str = ""
    troubles: list[tuple[float, str]] = field(default_factory=list)
    """What its client met with, and when."""

    @property
    def stall(self) -> float:
        """Its longest pause in seconds."""
        return max((pause.seconds for pause in self.pauses), default=0.0)


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
        self._client, self._model, self.asked = client, model, asked
        self._chance = random.Random(asked.seed)
        self.tokens: list[int] = []
        self.last = ""
        """Id of the last event."""
        self.reason = ""
        self.error = ""
        self.finished = False
        self.resumed = 0
        self.pauses: list[Pause] = []
        self.troubles: list[tuple[float, str]] = []
        self.started = self._heard = time.monotonic()

    async def read(self) -> None:
        """Until the end, an error, or patience is over."""
        while not (self.finished or self.error):
            if time.monotonic() - self._heard > _PATIENCE_SECONDS:
                return
            try:
                await self._attempt()
            except httpx.TransportError as error:
                self._met(type(error).__name__)
                await self._again()

    async def _attempt(self) -> None:
        async with self._open() as answer:
            if answer.status_code == 200:
                self.resumed += bool(self.last)
                async for event in events(answer):
                    self._event(event)
            elif answer.status_code != 204:
                return await self._refused(answer)
        if not (self.finished or self.error):
            raise httpx.ReadError("the stream ends before its end")

    def _open(self) -> Any:
        if not self.last:
            body, headers = self.asked.body(self._model), {"X-Stream-Durable": "1"}
            return self._client.stream("POST", "/v1/completions", json=body, headers=headers)
        name = self.last.rpartition(":")[0]
        headers = {"Last-Event-ID": self.last}
        return self._client.stream("GET", f"/v1/streams/{name}", headers=headers)

    async def _refused(self, answer: httpx.Response) -> None:
        """An error is clean when it has OpenAI's shape. What is only busy is asked again."""
        error = json.loads(await answer.aread()).get("error", {})
        if answer.status_code in (429, 503):
            self._met(f"{answer.status_code} {error['code']}")
            await self._again()
            return
        assert set(error) >= _SHAPE, error
        self.error = f"{error['code']}: {error['message']}"

    async def _again(self) -> None:
        await asyncio.sleep(self._chance.uniform(*_AGAIN_SECONDS))

    def _met(self, what: str) -> None:
        self.troubles.append((time.monotonic(), what))

    def _event(self, event: dict[bytes, bytes]) -> None:
        self.last = event.get(b"id", self.last.encode()).decode()
        if event.get(b"data") == b"[DONE]":
            self.finished = True
        elif b"data" in event:
            self._heed(json.loads(event[b"data"]))

    def _heed(self, event: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._heard > _WORTH_SECONDS:
            self.pauses.append(Pause(self._heard, now))
        self._heard = now
        if "error" in event:
            assert set(event["error"]) >= _SHAPE, event
            self.error = f"{event['error']['code']}: {event['error']['message']}"
            return
        for choice in event["choices"]:
            self.tokens += choice["token_ids"]
            self.reason = choice["finish_reason"] or self.reason


async def events(answer: httpx.Response) -> AsyncIterator[dict[bytes, bytes]]:
    """Fields of every whole event: one that is cut off does not count, and neither does its id.
    (httpx's own lines also end at U+2028 and the like, which are text here.)"""
    rest = b""
    async for data in answer.aiter_bytes():
        *whole, rest = (rest + data).split(b"\n\n")
        for event in whole:
            pairs = (line.partition(b": ") for line in event.split(b"\n"))
            yield {name: value for name, _, value in pairs}


Oracle = Callable[[random.Random], tuple[Asked, list[int]]]
"""Any request, and every token of its answer."""


def hashes(vocab: int) -> Oracle:
    """Requests to fake workers: their tokens follow from the request."""

    def draw(chance: random.Random) -> tuple[Asked, list[int]]:
        asked = Asked.any(chance, vocab)
        sampling = Sampling(asked.max_tokens, derive_seed(asked.seed, 0))
        return asked, expected_tokens(asked.prompt, sampling, vocab)[0]

    return draw


async def answers(client: httpx.AsyncClient, model: str, vocab: int, count: int) -> Oracle:
    """Some requests to a real model, with the tokens that they have while nothing is broken."""
    chance = random.Random(count)
    readers = [Reader(client, model, Asked.any(chance, vocab)) for _ in range(count)]
    await asyncio.gather(*(reader.read() for reader in readers))
    assert all(reader.finished for reader in readers), [reader.error for reader in readers]
    known = [(reader.asked, reader.tokens) for reader in readers]
    return lambda chance: chance.choice(known)


async def ask(client: httpx.AsyncClient, model: str, asked: Asked, expected: list[int]) -> Outcome:
    """Run one request to its end and judge it against what its tokens must be."""
    reader = Reader(client, model, asked)
    await reader.read()
    detail = reader.error or f"{len(reader.tokens)} tokens, {reader.last}"
    return Outcome(
        _judge(reader, expected),
        reader.started,
        time.monotonic(),
        reader.pauses,
        len(reader.tokens),
        reader.resumed,
        detail,
        reader.troubles,
    )


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
    client: httpx.AsyncClient, model: str, draw: Oracle, streams: int, until: float, seed: int
) -> AsyncIterator[Outcome]:
    """Keep so many streams running until a moment of the monotonic clock, then let them end."""
    outcomes: asyncio.Queue[Outcome] = asyncio.Queue()

    async def one(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        while time.monotonic() < until:
            outcomes.put_nowait(await ask(client, model, *draw(chance)))

    running = asyncio.gather(*(one(number) for number in range(streams)))
    while not running.done() or not outcomes.empty():
        try:
            yield await asyncio.wait_for(outcomes.get(), 0.2)
        except TimeoutError:
            continue
    await running
