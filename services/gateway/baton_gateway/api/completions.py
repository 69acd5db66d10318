"""POST /v1/completions

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from baton_gateway.api.answer import answer
from baton_gateway.api.documentation.description import describe
from baton_gateway.api.options import requested, sampling
from baton_gateway.api.stream_routes import StreamRoute
from baton_gateway.catalogue import ModelInfo
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.request import GenerationRequest, Prompt, TextPrompt
from baton_gateway.schemas.completion_responses import Completion
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.streaming.completion_writer import CompletionWriter
from baton_gateway.streaming.head import Head

router = APIRouter()


@router.post("/v1/completions")
@describe(CompletionRequest, Completion, events=Completion)
async def create(request: Request) -> Response:
    """Complete one or several prompts, streamed or not."""
    return await answer(request, ROUTE)


async def _writer(engine: Engine, body: CompletionRequest, head: Head) -> CompletionWriter:
    needs_vocabulary = body.logprobs is not None or body.prompt_logprobs is not None
    vocabulary = Vocabulary(())
    if needs_vocabulary:
        as_ids = body.return_tokens_as_token_ids
        vocabulary = await engine.models.vocabulary(head.model, as_ids=as_ids)
    model_info = await engine.models.get(head.model)
    return CompletionWriter(
        body, head, vocabulary, model_info, await _echoes(body, engine, model_info)
    )


async def _echoes(body: CompletionRequest, engine: Engine, model_info: ModelInfo) -> list[str]:
    """Return the text of every prompt if `echo` is set, else empty texts."""
    if not body.echo:
        return [""] * len(body.prompt)
    return [
        p if isinstance(p, str) else await _text(p, body.skip_special_tokens, engine, model_info)
        for p in body.prompt
    ]


async def _text(
    ids: tuple[int, ...], skip_special: bool, engine: Engine, model_info: ModelInfo
) -> str:
    valid = [i for i in ids[: model_info.max_model_len] if 0 <= i < model_info.vocab_size]
    return await engine.tokenizers.of(model_info.tokenizer).detokenize(valid, skip_special)


def _generation(request: Request, body: CompletionRequest, head: Head) -> GenerationRequest:
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


ROUTE = StreamRoute(
    name="completions",
    id_prefix="cmpl-",
    schema=CompletionRequest,
    num_prompts=lambda body: len(body.prompt),
    generation=_generation,
    writer=_writer,
)
