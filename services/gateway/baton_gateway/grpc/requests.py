"""Converts `vllm.grpc.engine.GenerateRequest` to a completion request.

Numbers without presence count as absent if they are 0, as in vLLM.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from starlette.requests import Request

from baton.errors import InvalidRequest
from baton_gateway.api.options import requested, sampling
from baton_gateway.config import Config
from baton_gateway.generation.request import GenerationRequest, Prompt, TextPrompt
from baton_gateway.http.body import build
from baton_gateway.http.errors import invalid
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.fields import INT32
from baton_gateway.streaming.head import Head

_NUMBERS = (
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
)
_OPTIONAL = ("temperature", "seed", "truncate_prompt_tokens", "prompt_logprobs")
_FLAGS = (
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
)
_CONSTRAINTS = {"json_schema": "json"}
"""vLLM's names of constraints in `structured_outputs`, where they differ."""
_MOST_LOGPROBS = 20
_UNSUPPORTED = {
    "mm_inputs": "Send pictures over HTTP to /v1/chat/completions.",
    "extra_mm_inputs": "Send pictures over HTTP to /v1/chat/completions.",
    "media_refs": "Send pictures over HTTP to /v1/chat/completions.",
    "kv_transfer_params": "The scheduler hands sequences from prefill to decode workers.",
    "kv_transfer_params_json": "The scheduler hands sequences from prefill to decode workers.",
    "data_parallel_rank": "The scheduler places sequences.",
}
"""Fields without a counterpart -> advice."""


def completion(request: pb.GenerateRequest, model: str) -> CompletionRequest:
    """Validate a request. Raises `InvalidRequest`."""
    _check_supported(request)
    params = request.sampling_params
    fields: dict[str, Any] = {"model": model, "prompt": _prompt(request)}
    fields |= {name: getattr(params, name) for name in _NUMBERS if getattr(params, name)}
    fields |= {name: getattr(params, name) for name in _OPTIONAL if params.HasField(name)}
    fields |= {name: getattr(params, name) for name in _FLAGS}
    fields["max_tokens"] = params.max_tokens if params.HasField("max_tokens") else INT32
    fields["stop"], fields["stop_token_ids"] = list(params.stop), list(params.stop_token_ids)
    fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if kind := params.WhichOneof("constraint"):
        fields["structured_outputs"] = {_CONSTRAINTS.get(kind, kind): _constraint(params, kind)}
    _check_finite(fields)
    if not fields["max_tokens"]:
        raise invalid("max_tokens", "Invalid 'max_tokens': expected 1 or more.")
    return build(fields, CompletionRequest, strict=True)


def logprobs(request: pb.GenerateRequest) -> int:
    """Number of alternatives per token; -1 for no log-probabilities. Raises `InvalidRequest`."""
    if not request.sampling_params.HasField("logprobs"):
        return -1
    number: int = request.sampling_params.logprobs
    if not 0 <= number <= _MOST_LOGPROBS:
        raise invalid("logprobs", f"Invalid 'logprobs': expected 0 to {_MOST_LOGPROBS}.")
    return number


def generation(
    call: Request, request: pb.GenerateRequest, body: CompletionRequest, head: Head
) -> GenerationRequest:
    """Create the generation request of a validated request."""
    config: Config = call.app.state.config
    scored = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    [text_or_ids] = body.prompt
    prompt: Prompt = TextPrompt(text_or_ids) if isinstance(text_or_ids, str) else text_or_ids
    return requested(
        call,
        body,
        head,
        (prompt,),
        sampling(body, config, logprobs(request), scored),
        param="input",
        max_tokens=body.max_tokens if request.sampling_params.HasField("max_tokens") else None,
        n=body.n,
    )


def _check_supported(request: pb.GenerateRequest) -> None:
    fields = {field.name for field, _ in request.ListFields()}
    for name, instead in _UNSUPPORTED.items():
        if name in fields:
            raise invalid(name, f"'{name}' is not supported. {instead}", "unsupported_value")


def _check_finite(fields: dict[str, Any]) -> None:
    for name, value in (fields | fields["logit_bias"]).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(name, f"Invalid '{name}': expected a finite number.")


def _prompt(request: pb.GenerateRequest) -> str | list[int]:
    if request.WhichOneof("input") is None:
        raise InvalidRequest("Missing 'input': send 'tokenized' or 'text'.", param="input")
    text: str = request.text
    return list(request.tokenized.input_ids) if request.HasField("tokenized") else text


def _constraint(params: pb.SamplingParams, kind: str) -> Any:
    value = getattr(params, kind)
    if kind == "choice":
        return list(value.choices)
    if kind != "structural_tag":
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.MsgspecError as error:
        raise invalid(kind, f"Invalid '{kind}': it is not JSON.") from error
