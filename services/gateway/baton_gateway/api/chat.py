"""POST /v1/chat/completions

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

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
from baton_gateway.generation import ChatPrompt, Delta, Generation, Started
from baton_gateway.logprobs import Vocabulary
from baton_gateway.middleware import account_of, budget_of
from baton_gateway.notes import Notes
from baton_gateway.schemas.openai import ChatRequest
from baton_gateway.schemas.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Usage,
)

router = APIRouter()


@router.post("/v1/chat/completions")
async def create(request: Request) -> Response:
    """Answer a conversation, whole or streamed."""
    body = await read(request, ChatRequest)
    engine: Engine = request.app.state.engine
    check_choices(body, 1, engine.config)
    await permitted(request, body.model)
    head = Head.of(request, "chatcmpl", body.model)
    to = await writer(engine, body, head)
    work = generation(request, body, head)
    if body.stream or durable(request, body):
        return work.notes.on(await streamed(request, body, work, head, "chat", to))
    started, choices = await whole(request, work)
    return work.notes.on(json(to.whole(started, choices)))


async def writer(engine: Engine, body: ChatRequest, head: Head) -> Writer:
    """What writes the answer."""
    asked = body.logprobs or body.prompt_logprobs is not None
    return Writer(body, head, await engine.vocabulary() if asked else Vocabulary(()))


def generation(request: Request, body: ChatRequest, head: Head) -> Generation:
    """What the engine is asked to do."""
    config: Config = request.app.state.config
    prompt = ChatPrompt(
        messages=msgspec.json.encode(body.messages),
        tools=msgspec.json.encode(body.tools) if body.tools else b"",
        kwargs=msgspec.json.encode(body.chat_template_kwargs) if body.chat_template_kwargs else b"",
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
    )
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    return Generation(
        id=head.id,
        prompts=(prompt,),
        sampling=sampling(
            body, config, (body.top_logprobs or 0) if body.logprobs else -1, prompt_logprobs
        ),
        seed=seed(body),
        max_tokens=body.limit,
        n=body.n,
        stops=body.stop,
        bad_words=body.bad_words,
        constraint=body.constraint,
        include_stop=body.include_stop_str_in_output,
        skip_special=body.skip_special_tokens,
        ignore_eos=body.ignore_eos,
        param="messages",
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
    """Turns choices and deltas into OpenAI's objects."""

    def __init__(self, body: ChatRequest, head: Head, vocabulary: Vocabulary) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary
        options = body.stream_options
        self._usage = options is not None and options.include_usage

    def whole(self, started: Started, choices: list[Choice]) -> ChatCompletion:
        """The answer as one object."""
        asked, ids = self._body.prompt_logprobs, self._body.return_token_ids
        scored = choices[0].prompt_logprobs
        return ChatCompletion(
            **self._head.fields(),
            choices=[self._choice(i, choice) for i, choice in enumerate(choices)],
            usage=Usage.of(
                len(started.prompts[0]), sum(len(c.tokens) for c in choices), choices[0].cached
            ),
            prompt_logprobs=UNSET
            if asked is None
            else self._vocabulary.prompt_table(scored or (), asked),
            prompt_token_ids=list(started.prompts[0]) if ids else UNSET,
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        top = self._body.top_logprobs or 0
        return ChatChoice(
            index=index,
            message=ChatMessage(choice.text),
            finish_reason=choice.reason,
            stop_reason=choice.stop,
            logprobs=self._vocabulary.chat(choice.logprobs, top) if self._body.logprobs else None,
            token_ids=list(choice.tokens) if self._body.return_token_ids else UNSET,
        )

    async def stream(
        self, started: Started, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[bytes, None]:
        """The answer as chunks: the role of each choice, its text, then perhaps the usage."""
        completion = cached = 0
        try:
            for index in range(self._body.n):
                role = ChatChunkChoice(index, ChatDelta(role="assistant", content=""))
                yield self._chunk(role, started if index == 0 else None)
            async for delta in deltas:
                completion += len(delta.tokens)
                cached = delta.cached if delta.choice == 0 else cached
                if self._worth_sending(delta):
                    yield self._chunk(self._piece(delta))
            if self._usage:
                usage = Usage.of(len(started.prompts[0]), completion, cached)
                chunk = ChatChunk(**self._head.fields(), choices=[], usage=usage)
                yield msgspec.json.encode(chunk)
        finally:
            await deltas.aclose()

    def _worth_sending(self, delta: Delta) -> bool:
        """A token whose text is held back is worth an event only for what else it carries."""
        carries = self._body.logprobs or self._body.return_token_ids
        return bool(delta.text or delta.reason or (carries and delta.tokens))

    def _piece(self, delta: Delta) -> ChatChunkChoice:
        top = self._body.top_logprobs or 0
        scored = self._body.logprobs and delta.logprobs
        return ChatChunkChoice(
            delta.choice,
            ChatDelta(content=delta.text) if delta.text or not delta.reason else ChatDelta(),
            logprobs=self._vocabulary.chat(delta.logprobs, top) if scored else None,
            finish_reason=delta.reason,
            stop_reason=delta.stop if delta.reason else UNSET,
            token_ids=list(delta.tokens) if self._body.return_token_ids else UNSET,
        )

    def _chunk(self, choice: ChatChunkChoice, started: Started | None = None) -> bytes:
        ids = started is not None and self._body.return_token_ids
        chunk = ChatChunk(
            **self._head.fields(),
            choices=[choice],
            usage=None if self._usage else UNSET,
            prompt_token_ids=list(started.prompts[0]) if ids and started else UNSET,
        )
        return msgspec.json.encode(chunk)
