"""Prompts of a given length, and the request lengths of a run.

Every prompt is unique, so the prefix cache has no hits.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import httpx

from baton.errors import InvalidRequest, Unavailable
from baton_ops.bench.images import NO_IMAGES, Images
from baton_ops.bench.load_generator import Outcome, Request, Target

Shape = Literal["fixed", "mixed"]
TEXT = (
    "The baton is a smooth hollow tube that every runner of a relay carries and passes on. A team "
    "may be fast and still lose the race, because the exchange has to happen inside a short zone, "
    "at full speed, and without a look back. The second runner starts before the first arrives; "
    "both count the same steps. When the hand closes around the tube nothing else has changed: the "
    "distance that was run stays run, the clock goes on, and only the legs are new. Good teams "
    "practise this more than they practise running. They talk about it in the evening, they mark "
    "the track with tape, and they agree on one word that means now."
)
_PROBE_SECONDS = 120.0


class Prompts(Protocol):
    """Creates a new prompt of about `tokens` tokens per call."""

    kind: str
    """Description of the prompts, in two words."""

    def make(self, tokens: int) -> str | list[int]:
        """Return a prompt as text or token ids."""


class IdPrompts:
    """Random token ids of ordinary text; the length is exact."""

    kind = "token ids"

    def __init__(self, pool: list[int], seed: int) -> None:
        self._pool = pool
        self._chance = random.Random(seed)

    def make(self, tokens: int) -> list[int]:
        return self._chance.choices(self._pool, k=tokens)


class TextPrompts:
    """Random words; the length is right on average."""

    kind = "random words"

    def __init__(self, tokens_per_word: float, overhead: float, seed: int) -> None:
        self._tokens_per_word = tokens_per_word
        self._overhead = overhead
        """Tokens that the server adds to every prompt, such as a chat template or a start token."""
        self._words = TEXT.split()
        self._chance = random.Random(seed)

    def make(self, tokens: int) -> str:
        words = max(1, round((tokens - self._overhead) / self._tokens_per_word))
        return " ".join(self._chance.choices(self._words, k=words))


@dataclass(frozen=True)
class Lengths:
    """Input and output lengths of the requests of a run, in tokens."""

    shape: Shape
    input_tokens: int
    output_tokens: int

    def pairs(self, seed: int) -> Iterator[tuple[int, int]]:
        """Yield (input, output) lengths without end.

        "mixed" draws each from a log-normal distribution with the given median, clipped to between
        an eighth and four times the median.
        """
        chance = random.Random(seed)
        while True:
            yield self._draw(self.input_tokens, chance), self._draw(self.output_tokens, chance)

    def _draw(self, median: int, chance: random.Random) -> int:
        if self.shape == "fixed":
            return median
        drawn = round(chance.lognormvariate(math.log(median), 0.8))
        return max(1, median // 8, min(4 * median, drawn))


def requests(
    prompts: Prompts, lengths: Lengths, count: int, seed: int, images: Images | None = None
) -> list[Request]:
    """Return `count` requests. The lengths are those of their texts."""
    pairs = lengths.pairs(seed)
    drawn = [next(pairs) for _ in range(count)]
    image_source = images or NO_IMAGES
    return [Request(prompts.make(tokens), output, image_source.next()) for tokens, output in drawn]


async def prompts_for(target: Target, seed: int) -> Prompts:
    """Return the most exact kind of prompt that the server supports: token ids, else measured
    text."""
    if target.endpoint == "completions":
        pool = await _tokenize(target)
        if pool and (await _probe(target, pool[:8])).input_tokens:
            return IdPrompts(pool, seed)
    return await _measured(target, seed)


async def _tokenize(target: Target) -> list[int]:
    """Return the ids of `TEXT`; empty when the server has no /tokenize."""
    body = {"model": target.model, "prompt": TEXT, "add_special_tokens": False}
    try:
        answer = await target.client.post("/tokenize", json=body)
    except httpx.HTTPError as error:
        raise Unavailable(f"The server does not answer: {error}") from error
    if answer.status_code != 200:
        return []
    return [int(token) for token in answer.json()["tokens"]]


async def _probe(target: Target, prompt: str | list[int]) -> Outcome:
    """Generate one token for a prompt; returns no token count if the server rejects the request."""
    now = asyncio.get_running_loop().time()
    outcome = await target.send(Request(prompt, 1), now, now + _PROBE_SECONDS)
    return outcome if outcome.error is None else replace(outcome, input_tokens=0)


async def _measured(target: Target, seed: int) -> TextPrompts:
    """Measure the tokens per word and the overhead with a short and a long text."""
    words = TEXT.split()
    short_run, long_run = [await _probe(target, " ".join(words[:count])) for count in (16, 112)]
    short, long = short_run.input_tokens, long_run.input_tokens
    if not short or not long or long <= short:
        reason = short_run.error or long_run.error or "the counts of two prompts do not differ"
        raise InvalidRequest(
            "The server answers no plain completion with a token count (usage): prompts cannot be "
            f"sized ({reason}). Try the other --endpoint."
        )
    per_word = (long - short) / 96
    return TextPrompts(per_word, short - 16 * per_word, seed)
