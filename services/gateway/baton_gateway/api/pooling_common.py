"""Code common to the pooling endpoints: admission, execution, encoding of outputs."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from baton.errors import InvalidRequest
from baton.protocol import MediaItem, PooledTask, Pooling, PoolingInfo, Sampling
from baton_gateway.api.collect_answer import collect
from baton_gateway.api.model_access import permitted
from baton_gateway.api.options import deadline, trace
from baton_gateway.catalogue import ModelInfo
from baton_gateway.config import Config
from baton_gateway.engine import Engine
from baton_gateway.generation.admission import serves
from baton_gateway.generation.chat_prompt import chat_prompt
from baton_gateway.generation.pair_prompt import Content, pair_prompt
from baton_gateway.generation.request import (
    ChatPrompt,
    GenerationRequest,
    PairPrompt,
    Prompt,
    RequestIdentity,
    RequestLimits,
    RequestSinks,
    SamplingOptions,
    TextPrompt,
)
from baton_gateway.generation.truncation import WHATEVER_FITS
from baton_gateway.http.errors import array_too_long, invalid
from baton_gateway.http.middleware import (
    id_of,
    quota_of,
    tenant_of,
    timeline_of,
)
from baton_gateway.schemas.pooling import Input, PooledRequest, VectorRequest
from baton_gateway.schemas.pooling_responses import Numbers, PooledUsage
from baton_gateway.schemas.unsupported import unsupported

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Job:
    """One pooling request that the model can serve."""

    request: Request
    body: PooledRequest
    model_info: ModelInfo
    info: PoolingInfo

    def head(self, prefix: str) -> dict[str, Any]:
        """Return the common fields of a response: id, created, model."""
        created, model = int(time.time()), self.body.model or self.model_info.name
        return {"id": f"{prefix}-{id_of(self.request)[4:]}", "created": created, "model": model}

    async def run(
        self, prompts: Sequence[Prompt], param: str, pooling: Pooling
    ) -> tuple[list[Vector], PooledUsage]:
        """Run the prompts and return their outputs in order."""
        config: Config = self.request.app.state.config
        if len(prompts) > config.max_pooling_inputs:
            raise array_too_long(param, config.max_pooling_inputs)
        generation = GenerationRequest(
            RequestIdentity(
                self.head("pool")["id"],
                trace=trace(self.request),
                tenant=tenant_of(self.request) or self.body.user or "",
                salt=(self.body.cache_salt or "").encode(),
                quota=quota_of(self.request),
            ),
            self._cut(prompts),
            SamplingOptions(Sampling(max_tokens=0)),
            model=self.model_info.name,
            param=param,
            pooling=pooling,
            limits=RequestLimits(0, deadline(self.request), self.body.priority),
            sinks=RequestSinks(timeline=timeline_of(self.request)),
        )
        started, choices = await collect(self.request, generation)
        total = sum(map(len, started.prompts))
        vectors = [np.frombuffer(choice.vector or b"", "<f4") for choice in choices]
        return vectors, PooledUsage(total, total)

    def _cut(self, prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
        """The prompts with as many tokens as the request asks to keep."""
        keep, most = self.body.truncate_prompt_tokens, self.model_info.max_model_len
        if keep is None:
            return tuple(prompts)
        if keep == 0 or keep > most:
            raise invalid(
                "truncate_prompt_tokens",
                f"Invalid 'truncate_prompt_tokens': expected a number from 1 to {most}, or -1 for "
                "as many as the model can take.",
            )
        keep = most if keep == WHATEVER_FITS else keep
        return tuple(_beginning(prompt, keep) for prompt in prompts)

    def pooling(self, dimensions: int | None = None) -> Pooling:
        """Return the pooling parameters of this request."""
        return Pooling(reach=self.info.reach, dimensions=dimensions or 0, raw=self.body.raw)


def _beginning(prompt: Prompt, keep: int) -> Prompt:
    """A prompt with its first tokens. Raises `InvalidRequest` if it has images."""
    if isinstance(prompt, tuple):
        return prompt[:keep]
    if isinstance(prompt, TextPrompt):
        return replace(prompt, keep=keep)
    if isinstance(prompt, ChatPrompt | PairPrompt) and not prompt.media:
        return replace(prompt, keep=keep)
    raise unsupported("truncate_prompt_tokens", "Prompts with images are not cut: leave it out.")


async def begin(request: Request, body: PooledRequest, *tasks: PooledTask) -> Job:
    """Create the job of a request. Raises `InvalidRequest` if the model serves none of the tasks,
    `Unavailable` if no worker reports its tasks in time."""
    model_info = await permitted(request, body.model)
    if not model_info.max_model_len:
        engine: Engine = request.app.state.engine
        model_info = await engine.models.with_worker(body.model, engine.config.service_wait_seconds)
    if model_info.pooling is None or (tasks and model_info.pooling.task not in tasks):
        raise InvalidRequest(
            f"The model `{model_info.name}` cannot be used here. {serves(model_info)}",
            code="unsupported_value",
            param="model",
        )
    return Job(request, body, model_info, model_info.pooling)


def asked_of(body: VectorRequest) -> list[Prompt]:
    """Convert a body's texts, ids or messages to prompts."""
    if body.input is not None:
        return prompts_of(body.input, body.add_special_tokens)
    if isinstance(body.messages, MediaItem):
        return [body.messages]
    assert body.messages is not None, "one of the two is there"
    return [
        chat_prompt(
            body.messages,
            kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
    ]


def prompts_of(value: Input, add_special: bool) -> list[Prompt]:
    """Convert texts and ids to prompts."""
    return [TextPrompt(text, add_special) if isinstance(text, str) else text for text in value]


def pairs_of(pairs: Sequence[tuple[Content, Content]], model_info: ModelInfo) -> list[Prompt]:
    """Convert queries and documents to prompts, one sequence per pair."""
    first = model_info.document_first
    return [pair_prompt(query, document, document_first=first) for query, document in pairs]


def check_dimensions(dimensions: int | None, info: PoolingInfo, param: str = "dimensions") -> None:
    """Raise `InvalidRequest` unless the model supports vectors of this size."""
    if dimensions is None or dimensions == info.width:
        return
    if dimensions > info.width:
        raise invalid(
            param,
            f"Invalid '{param}': integer above maximum value. Expected a value <= {info.width}, "
            f"but got {dimensions} instead.",
            "integer_above_max_value",
        )
    if info.task != "embed" or not info.matryoshka:
        raise unsupported(param, "The vectors of this model cannot be cut: leave it out.")
    if info.sizes and dimensions not in info.sizes:
        sizes = ", ".join(map(str, info.sizes))
        raise invalid(param, f"Invalid '{param}': this model knows {sizes}.", "unsupported_value")


def written(vector: Vector, encoding: str, columns: int = 0) -> Numbers:
    """Encode an output as requested; with `columns`, as rows."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: Numbers = (vector.reshape(-1, columns) if columns else vector).tolist()
    return numbers
