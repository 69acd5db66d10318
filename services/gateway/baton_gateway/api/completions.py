"""POST /v1/completions

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.reply import (
    Choice,
    Head,
    check_choices,
    permitted,
    requested,
    respond,
    sampling,
)
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import ModelInfo
from baton_gateway.generation.logprobs import (
    CompletionLogprobs,
    PromptTable,
    Vocabulary,
)
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.generation.request import GenerationRequest, Prompt, TextPrompt
from baton_gateway.http.body import read
from baton_gateway.schemas.base import CompletionRequest
from baton_gateway.schemas.usage import Completion, CompletionChoice, Usage
from baton_gateway.streaming.chunk_template import ChunkTemplate

router = APIRouter()


@router.post("/v1/completions")
async def create(request: Request) -> Response:
    """Continue one or several prompts, whole or streamed."""
    body = await read(request, CompletionRequest)
    engine: Engine = request.app.state.engine
    check_choices(body, len(body.prompt), engine.config)
    await permitted(request, body.model)
    head = Head.of(request, "cmpl", body.model)
    to = await writer(engine, body, head)
    return await respond(request, body, generation(request, body, head), head, "completions", to)


async def writer(engine: Engine, body: CompletionRequest, head: Head) -> Writer:
    """What writes the answer."""
    asked = body.logprobs is not None or body.prompt_logprobs is not None
    vocabulary = await engine.vocabulary() if asked else Vocabulary(())
    return Writer(body, head, vocabulary, await engine.model_info(), await _echoes(body, engine))


async def _echoes(body: CompletionRequest, engine: Engine) -> list[str]:
    """The text of every prompt, or nothing when it is not wanted back."""
    if not body.echo:
        return [""] * len(body.prompt)
    return [
        p if isinstance(p, str) else await _text(p, body.skip_special_tokens, engine)
        for p in body.prompt
    ]


async def _text(ids: tuple[int, ...], skip_special: bool, engine: Engine) -> str:
    facts = await engine.model_info()
    known = [i for i in ids[: facts.max_model_len] if 0 <= i < facts.vocab_size]
    return await engine.tokenizers.detokenize(known, skip_special)


def generation(request: Request, body: CompletionRequest, head: Head) -> GenerationRequest:
    """What the engine is asked to do."""
    config: Config = request.app.state.config
    prompts: list[Prompt] = [
        TextPrompt(p, body.add_special_tokens) if isinstance(p, str) else p for p in body.prompt
    ]
    logprobs = -1 if body.logprobs is None else body.logprobs
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    how = sampling(
        body,
        config,
        max(logprobs, 0) if body.candidates > body.n else logprobs,
        max(prompt_logprobs, logprobs) if body.echo else prompt_logprobs,
    )
    return requested(
        request,
        body,
        head,
        tuple(prompts),
        how,
        param="prompt",
        max_tokens=body.max_tokens,
        n=body.candidates,
    )


class Writer:
    """Turns choices and deltas into OpenAI's objects.

    With `echo` a choice begins with its prompt: text, tokens and log-probabilities. With
    `max_tokens` 0 the one token that the model had to sample is dropped.
    """

    def __init__(
        self,
        body: CompletionRequest,
        head: Head,
        vocabulary: Vocabulary,
        facts: ModelInfo,
        echoes: list[str],
    ) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary
        self._echoes = echoes
        self._silent = facts.special_ids if body.skip_special_tokens else frozenset()

    def whole(self, started: Started, choices: list[Choice]) -> Completion:
        """The answer as one object."""
        shown = [self.shown(choice) for choice in self._best(choices)]
        spent = sum(len(self.shown(choice).tokens) for choice in choices)
        return Completion(
            **self._head.fields(),
            choices=[self.choice(i, choice, started) for i, choice in enumerate(shown)],
            usage=_count(started, spent, [choice.cached for choice in choices]),
        )

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """The `n` most probable of each prompt's candidates, best first; in order without more."""
        n, candidates = self._body.n, self._body.candidates
        if n == candidates:
            return choices
        groups = [choices[i : i + candidates] for i in range(0, len(choices), candidates)]
        return [best for group in groups for best in sorted(group, key=_rank)[:n]]

    def transcript(self, started: Started) -> Transcript:
        """The answer as chunks."""
        return Transcript(self, self._body, self._head, started)

    def shown(self, choice: Choice) -> Choice:
        """What of a choice, or of a part of it, the client is to see."""
        if self._body.max_tokens:
            return choice
        return Choice(prompt_logprobs=choice.prompt_logprobs, reason=choice.reason and "length")

    def choice(
        self, index: int, part: Choice, started: Started, *, first: bool = True
    ) -> CompletionChoice:
        """A choice or a later part of it; what concerns the prompt stands in the first one."""
        number = index // self._body.n
        prompt, echo = started.prompts[number], self._echoes[number]
        asked, ids = self._body.prompt_logprobs, self._body.return_token_ids
        logprobs = self._logprobs(part, prompt if first and self._body.echo else None, echo)
        table: PromptTable | UnsetType = UNSET
        if asked is not None and first:
            table = self._vocabulary.prompt_table(part.prompt_logprobs or (), asked)
        return CompletionChoice(
            index,
            (echo if first else "") + part.text,
            part.reason,
            part.stop,
            logprobs=logprobs,
            prompt_logprobs=table,
            token_ids=list(part.tokens) if ids else UNSET,
            prompt_token_ids=list(prompt) if ids and first else UNSET,
        )

    def _logprobs(
        self, part: Choice, prompt: array[int] | None, echo: str
    ) -> CompletionLogprobs | None:
        top = self._body.logprobs
        if top is None:
            return None
        offsets = [len(echo) + start for start in part.starts]
        body = self._vocabulary.completion(part.logprobs, top, offsets)
        if prompt is None:
            return body
        scored = part.prompt_logprobs or ()
        return self._vocabulary.echo(prompt, scored, top, echo, self._silent).then(body)


class Transcript:
    """The answer as chunks, each of one choice, then perhaps the usage."""

    def __init__(
        self, writer: Writer, body: CompletionRequest, head: Head, started: Started
    ) -> None:
        self._writer, self._body, self._head, self._started = writer, body, head, started
        options = body.stream_options
        self._usage = options is not None and options.include_usage
        self._carries = body.logprobs is not None or body.return_token_ids
        self._plain = body.logprobs is None and body.max_tokens != 0
        """A later part of a choice that runs says nothing but text and ids."""
        self._templates: dict[int, ChunkTemplate] = {}
        self._lengths: dict[int, int] = {}
        """Characters of each choice so far."""
        self._cached = [0] * len(started.prompts) * body.candidates
        self._completion = 0

    def opening(self) -> Iterator[bytes]:
        """Nothing."""
        return iter(())

    def add(self, delta: OutputDelta) -> bytes | None:
        """A part of a choice. A token whose text is held back is worth an event only for what else
        it carries."""
        at = self._lengths.get(delta.choice)
        self._lengths[delta.choice] = (at or 0) + len(delta.text)
        self._cached[delta.choice] = delta.cached
        if at is None or delta.reason is not None or not self._plain:
            return self._part(delta, at or 0, first=at is None)
        self._completion += len(delta.tokens)
        if not (delta.text or (self._carries and delta.tokens)):
            return None
        return self._template(delta.choice).fill(delta.text, delta.tokens)

    def closing(self) -> Iterator[bytes]:
        """The usage, if it was asked for."""
        if self._usage:
            total = _count(self._started, self._completion, self._cached)
            chunk = Completion(**self._head.fields(), choices=[], usage=total)
            yield msgspec.json.encode(chunk)

    def _part(self, delta: OutputDelta, at: int, *, first: bool) -> bytes | None:
        """Any part, `at` characters into its choice."""
        part = self._writer.shown(Choice.of(delta, at))
        self._completion += len(part.tokens)
        echoes = first and self._body.echo
        if not (part.text or part.reason or echoes or (self._carries and part.tokens)):
            return None
        return self._chunk(delta.choice, part, first=first)

    def _chunk(self, choice: int, part: Choice, *, first: bool = False) -> bytes:
        shown = self._writer.choice(choice, part, self._started, first=first)
        usage = None if self._usage else UNSET
        chunk = Completion(**self._head.fields(), choices=[shown], usage=usage)
        return msgspec.json.encode(chunk)

    def _template(self, choice: int) -> ChunkTemplate:
        if choice not in self._templates:
            self._templates[choice] = ChunkTemplate(self._chunk(choice, Choice()), "text")
        return self._templates[choice]


def _rank(choice: Choice) -> float:
    """Ascending from the most probable: by the summed log-probability of all its tokens."""
    return -math.fsum(scored.logprob for scored in choice.logprobs)


def _count(started: Started, completion: int, cached: list[int]) -> Usage:
    """A prompt counts once, however many choices continue it; its first one finds it cached."""
    per_prompt = len(cached) // len(started.prompts)
    return Usage.of(sum(map(len, started.prompts)), completion, sum(cached[::per_prompt]))
