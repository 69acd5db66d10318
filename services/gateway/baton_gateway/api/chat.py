"""POST /v1/chat/completions

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
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
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.generation.request import ChatPrompt, GenerationRequest
from baton_gateway.http.body_reader import read
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.chat_responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
)
from baton_gateway.schemas.usage import Usage
from baton_gateway.streaming.chunk_template import ChunkTemplate

router = APIRouter()


@router.post("/v1/chat/completions")
async def create(request: Request) -> Response:
    """Complete a conversation, whole or streamed."""
    body = await read(request, ChatRequest)
    engine: Engine = request.app.state.engine
    check_choices(body, 1, engine.config)
    await permitted(request, body.model)
    head = Head.of(request, "chatcmpl", body.model)
    to = await writer(engine, body, head)
    return await respond(request, body, generation(request, body, head), head, "chat", to)


async def writer(engine: Engine, body: ChatRequest, head: Head) -> Writer:
    """Create the response writer."""
    asked = body.logprobs or body.prompt_logprobs is not None
    return Writer(
        body, head, await engine.models.vocabulary(head.model) if asked else Vocabulary(())
    )


def generation(request: Request, body: ChatRequest, head: Head) -> GenerationRequest:
    """Convert the body to a generation request."""
    config: Config = request.app.state.config
    prompt = ChatPrompt(
        messages=msgspec.json.encode(body.messages),
        tools=msgspec.json.encode(body.tools) if body.tools else b"",
        kwargs=msgspec.json.encode(body.chat_template_kwargs) if body.chat_template_kwargs else b"",
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
    )
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    how = sampling(body, config, logprobs, prompt_logprobs)
    return requested(
        request, body, head, (prompt,), how, param="messages", max_tokens=body.limit, n=body.n
    )


class Writer:
    """Converts choices and deltas to OpenAI's objects."""

    def __init__(self, body: ChatRequest, head: Head, vocabulary: Vocabulary) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary

    def whole(self, started: Started, choices: list[Choice]) -> ChatCompletion:
        """Return the complete response."""
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
            message=ChatMessage(choice.content),
            finish_reason=choice.reason,
            stop_reason=choice.stop,
            logprobs=self._vocabulary.chat(choice.logprobs, top) if self._body.logprobs else None,
            token_ids=list(choice.tokens) if self._body.return_token_ids else UNSET,
        )

    def transcript(self, started: Started) -> Transcript:
        """Return a transcript that produces chunks."""
        return Transcript(self._body, self._head, self._vocabulary, started)


class Transcript:
    """Produces the chunks of a response: role per choice, text, then the usage if requested."""

    def __init__(
        self, body: ChatRequest, head: Head, vocabulary: Vocabulary, started: Started
    ) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary
        self._prompt = started.prompts[0]
        options = body.stream_options
        self._usage = options is not None and options.include_usage
        self._carries = body.logprobs or body.return_token_ids
        self._templates: dict[int, ChunkTemplate] = {}
        """Per choice, the template of a chunk that contains only text and ids."""
        self._completion = self._cached = 0

    def opening(self) -> Iterator[bytes]:
        """Yield the role chunk of each choice."""
        for index in range(self._body.n):
            role = ChatChunkChoice(index, ChatDelta(role="assistant", content=""))
            yield self._chunk(role, first=index == 0)

    def add(self, delta: OutputDelta) -> bytes | None:
        """Return the chunk for a delta; None if its text is held back and it carries nothing
        else."""
        self._completion += len(delta.tokens)
        if delta.choice == 0:
            self._cached = delta.cached
        if not (delta.text or delta.reason or (self._carries and delta.tokens)):
            return None
        if delta.reason is not None or self._body.logprobs:
            return self._chunk(self._piece(delta))
        return self._template(delta.choice).fill(delta.text, delta.tokens)

    def closing(self) -> Iterator[bytes]:
        """Yield the usage, if requested."""
        if self._usage:
            usage = Usage.of(len(self._prompt), self._completion, self._cached)
            yield msgspec.json.encode(ChatChunk(**self._head.fields(), choices=[], usage=usage))

    def _template(self, choice: int) -> ChunkTemplate:
        if choice not in self._templates:
            empty = self._chunk(self._piece(OutputDelta(choice, "", array("i"))))
            self._templates[choice] = ChunkTemplate(empty, "content")
        return self._templates[choice]

    def _piece(self, delta: OutputDelta) -> ChatChunkChoice:
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

    def _chunk(self, choice: ChatChunkChoice, *, first: bool = False) -> bytes:
        chunk = ChatChunk(
            **self._head.fields(),
            choices=[choice],
            usage=None if self._usage else UNSET,
            prompt_token_ids=list(self._prompt) if first and self._body.return_token_ids else UNSET,
        )
        return msgspec.json.encode(chunk)
