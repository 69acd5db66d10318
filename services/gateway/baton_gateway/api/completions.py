"""POST /v1/completions

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.admission import Facts
from baton_gateway.api.reply import (
    Choice,
    Head,
    check_choices,
    deadline,
    durable,
    json,
    permitted,
    sampling,
    seed,
    streamed,
    tenant,
    trace,
    whole,
)
from baton_gateway.body import read
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation import Delta, Generation, Prompt, Started, TextPrompt
from baton_gateway.logprobs import CompletionLogprobs, PromptTable, Vocabulary
from baton_gateway.middleware import account_of, budget_of
from baton_gateway.notes import Notes
from baton_gateway.schemas.openai import CompletionRequest
from baton_gateway.schemas.responses import Completion, CompletionChoice, Usage

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
    work = generation(request, body, head)
    if body.stream or durable(request, body):
        return work.notes.on(await streamed(request, body, work, head, "completions", to))
    started, choices = await whole(request, work)
    return work.notes.on(json(to.whole(started, choices)))


async def writer(engine: Engine, body: CompletionRequest, head: Head) -> Writer:
    """What writes the answer."""
    asked = body.logprobs is not None or body.prompt_logprobs is not None
    vocabulary = await engine.vocabulary() if asked else Vocabulary(())
    return Writer(body, head, vocabulary, await engine.facts(), await _echoes(body, engine))


async def _echoes(body: CompletionRequest, engine: Engine) -> list[str]:
    """The text of every prompt, or nothing when it is not wanted back."""
    if not body.echo:
        return [""] * len(body.prompt)
    return [
        p if isinstance(p, str) else await _text(p, body.skip_special_tokens, engine)
        for p in body.prompt
    ]


async def _text(ids: tuple[int, ...], skip_special: bool, engine: Engine) -> str:
    facts = await engine.facts()
    known = [i for i in ids[: facts.max_length] if 0 <= i < facts.vocab_size]
    return await engine.tokenizers.detokenize(known, skip_special)


def generation(request: Request, body: CompletionRequest, head: Head) -> Generation:
    """What the engine is asked to do."""
    config: Config = request.app.state.config
    prompts: list[Prompt] = [
        TextPrompt(p, body.add_special_tokens) if isinstance(p, str) else p for p in body.prompt
    ]
    logprobs = -1 if body.logprobs is None else body.logprobs
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    return Generation(
        id=head.id,
        prompts=tuple(prompts),
        sampling=sampling(
            body,
            config,
            max(logprobs, 0) if body.candidates > body.n else logprobs,
            max(prompt_logprobs, logprobs) if body.echo else prompt_logprobs,
        ),
        seed=seed(body),
        max_tokens=body.max_tokens,
        n=body.candidates,
        stops=body.stop,
        bad_words=body.bad_words,
        constraint=body.constraint,
        include_stop=body.include_stop_str_in_output,
        skip_special=body.skip_special_tokens,
        ignore_eos=body.ignore_eos,
        param="prompt",
        trace=trace(request),
        deadline_ms=deadline(request),
        priority=body.priority,
        tenant=tenant(request, body),
        salt=(body.cache_salt or "").encode(),
        notes=Notes.of(request),
        beams=body.beams,
        budget=budget_of(request),
        account=account_of(request),
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
        facts: Facts,
        echoes: list[str],
    ) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary
        self._echoes = echoes
        self._silent = facts.special_ids if body.skip_special_tokens else frozenset()
        options = body.stream_options
        self._usage = options is not None and options.include_usage

    def whole(self, started: Started, choices: list[Choice]) -> Completion:
        """The answer as one object."""
        shown = [self._shown(choice) for choice in self._best(choices)]
        spent = sum(len(self._shown(choice).tokens) for choice in choices)
        return Completion(
            **self._head.fields(),
            choices=[self._choice(i, choice, started) for i, choice in enumerate(shown)],
            usage=_count(started, spent, [choice.cached for choice in choices]),
        )

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """The `n` most probable of each prompt's candidates, best first; in order without more."""
        n, candidates = self._body.n, self._body.candidates
        if n == candidates:
            return choices
        groups = [choices[i : i + candidates] for i in range(0, len(choices), candidates)]
        return [best for group in groups for best in sorted(group, key=_rank)[:n]]

    async def stream(
        self, started: Started, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[bytes, None]:
        """The answer as chunks, each of one choice, then perhaps the usage."""
        completion = 0
        lengths: dict[int, int] = {}
        cached = [0] * len(started.prompts) * self._body.candidates
        usage = None if self._usage else UNSET
        try:
            async for delta in deltas:
                at = lengths.get(delta.choice, 0)
                first = delta.choice not in lengths
                lengths[delta.choice] = at + len(delta.text)
                cached[delta.choice] = delta.cached
                part = self._shown(Choice.of(delta, at))
                completion += len(part.tokens)
                if self._worth_sending(part, first):
                    choice = self._choice(delta.choice, part, started, first=first)
                    chunk = Completion(**self._head.fields(), choices=[choice], usage=usage)
                    yield msgspec.json.encode(chunk)
            if self._usage:
                total = _count(started, completion, cached)
                chunk = Completion(**self._head.fields(), choices=[], usage=total)
                yield msgspec.json.encode(chunk)
        finally:
            await deltas.aclose()

    def _worth_sending(self, part: Choice, first: bool) -> bool:
        """A token whose text is held back is worth an event only for what else it carries."""
        carries = self._body.logprobs is not None or self._body.return_token_ids
        echoes = first and self._body.echo
        return bool(part.text or part.reason or echoes or (carries and part.tokens))

    def _shown(self, choice: Choice) -> Choice:
        if self._body.max_tokens:
            return choice
        return Choice(prompt_logprobs=choice.prompt_logprobs, reason=choice.reason and "length")

    def _choice(
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


def _rank(choice: Choice) -> float:
    """Ascending from the most probable: by the summed log-probability of all its tokens."""
    return -math.fsum(scored.logprob for scored in choice.logprobs)


def _count(started: Started, completion: int, cached: list[int]) -> Usage:
    """A prompt counts once, however many choices continue it; its first one finds it cached."""
    per_prompt = len(cached) // len(started.prompts)
    return Usage.of(sum(map(len, started.prompts)), completion, sum(cached[::per_prompt]))
