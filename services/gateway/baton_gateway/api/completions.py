"""POST /v1/completions

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
from baton_gateway.catalogue import ModelInfo
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import (
    CompletionLogprobs,
    PromptTable,
    Vocabulary,
)
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.generation.request import GenerationRequest, Prompt, TextPrompt
from baton_gateway.http.body_reader import read
from baton_gateway.schemas.completion_responses import Completion, CompletionChoice
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.usage import Usage
from baton_gateway.streaming.chunk_template import ChunkTemplate

router = APIRouter()


@router.post("/v1/completions")
async def create(request: Request) -> Response:
    """Complete one or several prompts, whole or streamed."""
    body = await read(request, CompletionRequest)
    engine: Engine = request.app.state.engine
    check_choices(body, len(body.prompt), engine.config)
    await permitted(request, body.model)
    head = Head.of(request, "cmpl", body.model)
    to = await writer(engine, body, head)
    return await respond(request, body, generation(request, body, head), head, "completions", to)


async def writer(engine: Engine, body: CompletionRequest, head: Head) -> Writer:
    """Create the response writer."""
    asked = body.logprobs is not None or body.prompt_logprobs is not None
    vocabulary = await engine.models.vocabulary(head.model) if asked else Vocabulary(())
    facts = await engine.models.get(head.model)
    return Writer(body, head, vocabulary, facts, await _echoes(body, engine, facts))


async def _echoes(body: CompletionRequest, engine: Engine, facts: ModelInfo) -> list[str]:
    """Return the text of every prompt if `echo` is set, else an empty list."""
    if not body.echo:
        return [""] * len(body.prompt)
    return [
        p if isinstance(p, str) else await _text(p, body.skip_special_tokens, engine, facts)
        for p in body.prompt
    ]


async def _text(ids: tuple[int, ...], skip_special: bool, engine: Engine, facts: ModelInfo) -> str:
    known = [i for i in ids[: facts.max_model_len] if 0 <= i < facts.vocab_size]
    return await engine.tokenizers.of(facts.tokenizer).detokenize(known, skip_special)


def generation(request: Request, body: CompletionRequest, head: Head) -> GenerationRequest:
    """Convert the body to a generation request."""
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
    """Converts choices and deltas to OpenAI's objects.

    With `echo`, a choice begins with its prompt: text, tokens and log-probabilities. With
    `max_tokens` 0, the single token that the model must sample is dropped.
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
        """Return the complete response."""
        shown = [self.shown(choice) for choice in self._best(choices)]
        spent = sum(len(self.shown(choice).tokens) for choice in choices)
        return Completion(
            **self._head.fields(),
            choices=[self.choice(i, choice, started) for i, choice in enumerate(shown)],
            usage=_count(started, spent, [choice.cached for choice in choices]),
        )

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """Return the `n` most probable candidates per prompt, best first; unsorted when there are
        only `n`."""
        n, candidates = self._body.n, self._body.candidates
        if n == candidates:
            return choices
        groups = [choices[i : i + candidates] for i in range(0, len(choices), candidates)]
        return [best for group in groups for best in sorted(group, key=_rank)[:n]]

    def transcript(self, started: Started) -> Transcript:
        """Return a transcript that produces chunks."""
        return Transcript(self, self._body, self._head, started)

    def shown(self, choice: Choice) -> Choice:
        """Return the visible part of a choice or delta."""
        if self._body.max_tokens:
            return choice
        return Choice(prompt_logprobs=choice.prompt_logprobs, reason=choice.reason and "length")

    def choice(
        self, index: int, part: Choice, started: Started, *, first: bool = True
    ) -> CompletionChoice:
        """Convert a choice or a part of it; prompt fields are in the first part only."""
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
        self, part: Choice, prompt: Sequence[int] | None, echo: str
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
    """Produces the chunks of a response, each for one choice, then the usage if requested."""

    def __init__(
        self, writer: Writer, body: CompletionRequest, head: Head, started: Started
    ) -> None:
        self._writer, self._body, self._head, self._started = writer, body, head, started
        options = body.stream_options
        self._usage = options is not None and options.include_usage
        self._carries = body.logprobs is not None or body.return_token_ids
        self._plain = body.logprobs is None and body.max_tokens != 0
        """True if later parts of a running choice contain only text and ids."""
        self._templates: dict[int, ChunkTemplate] = {}
        self._lengths: dict[int, int] = {}
        """Length of each choice so far, in characters."""
        self._cached = [0] * len(started.prompts) * body.candidates
        self._completion = 0

    def opening(self) -> Iterator[bytes]:
        """Yields nothing."""
        return iter(())

    def add(self, delta: OutputDelta) -> bytes | None:
        """Return the chunk for a delta; None if its text is held back and it carries nothing
        else."""
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
        """Yield the usage, if requested."""
        if self._usage:
            total = _count(self._started, self._completion, self._cached)
            chunk = Completion(**self._head.fields(), choices=[], usage=total)
            yield msgspec.json.encode(chunk)

    def _part(self, delta: OutputDelta, at: int, *, first: bool) -> bytes | None:
        """Return the chunk of any part, `at` characters into its choice."""
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
    """Sort key: negative sum of the log-probabilities of all tokens."""
    return -math.fsum(scored.logprob for scored in choice.logprobs)


def _count(started: Started, completion: int, cached: list[int]) -> Usage:
    """Count a prompt once for all of its choices; its first choice has the cached tokens."""
    per_prompt = len(cached) // len(started.prompts)
    return Usage.of(sum(map(len, started.prompts)), completion, sum(cached[::per_prompt]))
