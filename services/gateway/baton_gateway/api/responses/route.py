"""The Responses API as a streaming API: a response is the answer to a chat."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from msgspec import structs
from starlette.requests import Request

from baton_gateway.access.reasoning_cipher import cipher_of
from baton_gateway.api import chat
from baton_gateway.api.stream_routes import StreamRoute
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.request import ChatPrompt, GenerationRequest, Prompt
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.request import own_name
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_writer import ResponseWriter


async def response_writer(engine: Engine, body: ResponseChat, head: Head) -> ResponseWriter:
    """Return the writer of a chat's response."""
    vocabulary = Vocabulary(())
    if body.logprobs:
        vocabulary = await engine.models.vocabulary(head.model)
    if body.encrypt_for is None:
        return ResponseWriter(body, head, vocabulary)
    cipher = cipher_of(engine.config.reasoning_key, engine.config.run_dir)
    encrypt = partial(cipher.encrypt, owner=body.encrypt_for)
    return ResponseWriter(body, head, vocabulary, encrypt)


def _generation(request: Request, body: ResponseChat, head: Head) -> GenerationRequest:
    work = chat.ROUTE.generation(request, body, head)
    work = replace(work, param="input", prompts=tuple(map(_of_input, work.prompts)))
    constraint = work.sampling.constraint
    if constraint is None:
        return work
    constraint = replace(constraint, param=own_name(constraint.param))
    return replace(work, sampling=replace(work.sampling, constraint=constraint))


def _of_input(prompt: Prompt) -> Prompt:
    """The prompt with errors of media attributed to the input: several items may have become one
    message, so the number of a message identifies no item."""
    if not isinstance(prompt, ChatPrompt):
        return prompt
    media = tuple(structs.replace(item, param="input") for item in prompt.media)
    return replace(prompt, media=media)


ROUTE = StreamRoute(
    name="responses",
    id_prefix="resp_",
    schema=ResponseChat,
    num_prompts=lambda body: 1,
    generation=_generation,
    writer=response_writer,
    named_events=True,
)
