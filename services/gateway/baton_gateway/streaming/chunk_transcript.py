"""Transcript of the APIs whose streams are chunks: chat and completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.usage import CompletionDetails, Usage
from baton_gateway.streaming.chunk_template import ChunkTemplate
from baton_gateway.streaming.prediction_usage import PredictionUsage


class ChunkFormat(Protocol):
    """The chunks of one API for one request."""

    text_field: str
    """Field of a chunk that contains its text."""
    plain: bool
    """True if a chunk of a running choice contains only text and ids, unless it is the first."""
    carries_tokens: bool
    """True if tokens are sent even if they have no text yet."""
    include_usage: bool
    """True if a last chunk contains the usage."""
    continuous_usage: bool
    """True if all chunks contain the usage so far; `plain` is false then."""
    num_choices: int
    """Choices of each prompt."""

    def opening(self, started: Started) -> Iterable[msgspec.Struct]:
        """Return the chunks before the first delta."""

    def text_of(self, delta: OutputDelta) -> str | None:
        """Return the text of a delta's chunk; None if the chunk needs more than a text."""

    def chunks(
        self, started: Started, index: int, part: Choice, *, first: bool
    ) -> Iterable[msgspec.Struct]:
        """Return the chunks for a part of choice `index`; none for a part without content.

        Args:
            first: whether this is the first part of the choice.
        """

    def empty_chunk(self, index: int) -> msgspec.Struct:
        """Return a chunk of a running choice with an empty text and no ids."""

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """Return the last chunk."""

    def usage(self, started: Started, completion: int, cached: list[int], reasoning: int) -> Usage:
        """Return the token counts; see `count`."""


class ChunkTranscript:
    """Chunks of all choices, then the usage if requested.

    A chunk that differs from the one before it only in its text and ids is a filled template; all
    others are built and encoded as a whole.
    """

    _started: Started

    def __init__(self, form: ChunkFormat) -> None:
        self._format = form
        self._templates: dict[int, ChunkTemplate] = {}
        self._lengths: dict[int, int] = {}
        """Per choice that has begun, length of its text in characters."""
        self._cached: dict[int, int] = {}
        self._completion = self._reasoning = 0
        self._predictions = PredictionUsage(b"")

    def opening(self, started: Started) -> Iterable[bytes]:
        """Return the chunks before the first delta."""
        self._started = started
        self._predictions = PredictionUsage(started.prediction)
        return map(self._encode, self._format.opening(started))

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        """Return the chunks for a delta."""
        at = self._lengths.get(delta.choice)
        self._lengths[delta.choice] = (at or 0) + len(delta.text)
        self._cached[delta.choice] = delta.cached
        self._completion += len(delta.tokens)
        self._reasoning += delta.reasoning_tokens
        self._predictions.add(delta.choice, delta.tokens)
        if at is not None and delta.reason is None and self._format.plain:
            text = self._format.text_of(delta)
            if text is not None:
                return self._fill(delta, text)
        part = Choice.of(delta, at or 0)
        chunks = self._format.chunks(self._started, delta.choice, part, first=at is None)
        return map(self._encode, chunks)

    def _encode(self, chunk: msgspec.Struct) -> bytes:
        if self._format.continuous_usage:
            chunk = msgspec.structs.replace(chunk, usage=self._usage())
        return msgspec.json.encode(chunk)

    def _usage(self) -> Usage:
        """The usage so far; the first choice of a prompt may not have begun."""
        choices = range(len(self._started.prompts) * self._format.num_choices)
        cached = [self._cached.get(choice, 0) for choice in choices]
        usage = self._format.usage(self._started, self._completion, cached, self._reasoning)
        self._predictions.report(usage)
        return usage

    def _fill(self, delta: OutputDelta, text: str) -> tuple[bytes, ...]:
        if not (text or (self._format.carries_tokens and delta.tokens)):
            return ()
        return (self._template(delta.choice).fill(text, delta.tokens),)

    def _template(self, choice: int) -> ChunkTemplate:
        if choice not in self._templates:
            empty = msgspec.json.encode(self._format.empty_chunk(choice))
            self._templates[choice] = ChunkTemplate(empty, self._format.text_field)
        return self._templates[choice]

    def closing(self) -> Iterator[bytes]:
        """Yield the usage, if requested."""
        if self._format.include_usage:
            yield msgspec.json.encode(self._format.usage_chunk(self._usage()))


def count(started: Started, completion: int, cached: list[int], reasoning: int = 0) -> Usage:
    """Count a prompt once for all of its choices; its first choice has the cached tokens.

    Args:
        completion: tokens of all choices.
        cached: per choice, prompt tokens that came from the prefix cache.
        reasoning: how many of `completion` are the model's thinking.
    """
    per_prompt = len(cached) // len(started.prompts)
    usage = Usage.of(sum(map(len, started.prompts)), completion, sum(cached[::per_prompt]))
    if reasoning:
        usage.completion_tokens_details = CompletionDetails(reasoning)
    return usage
