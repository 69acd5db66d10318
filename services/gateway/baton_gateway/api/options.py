"""Options of a request: from its body and headers to a generation request."""

from __future__ import annotations

import re
import secrets

from msgspec import structs
from starlette.requests import Request

from baton.errors import InvalidRequest
from baton.protocol import Sampling
from baton_gateway.config import Config
from baton_gateway.generation import logits_processors, processor_registry
from baton_gateway.generation.request import (
    GenerationRequest,
    Prompt,
    RequestIdentity,
    RequestLimits,
    RequestSinks,
    SamplingOptions,
    TextOptions,
)
from baton_gateway.http.admission_headers import AdmissionHeaders
from baton_gateway.http.errors import invalid
from baton_gateway.http.middleware import quota_of, tenant_of, timeline_of
from baton_gateway.schemas.audio.speech_request import SpeechRequest
from baton_gateway.schemas.sampled_request import SampledRequest
from baton_gateway.streaming.head import Head

_GREEDY = 1e-5
"""Temperatures below this would overflow the division by it; they are treated as greedy."""

_LONGEST_MS = 86_400_000

_TRACE = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def sampling(body: SampledRequest, config: Config, logprobs: int, prompt_logprobs: int) -> Sampling:
    """Return the client's sampling parameters; the engine fills in those that need the model."""
    return structs.replace(
        distribution(body),
        logit_bias=body.logit_bias,
        min_tokens=body.min_tokens,
        stop_ids=body.stop_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        typical_p=body.typical_p,
        allowed_ids=body.allowed_token_ids,
        grammar=body.constraint.grammar if body.constraint else None,
        processors=logits_processors.check(
            body.processors, processor_registry.names(config.logits_processors)
        ),
        num_speculative_tokens=body.speculative.num_speculative_tokens if body.speculative else -1,
    )


def distribution(body: SampledRequest | SpeechRequest) -> Sampling:
    """Return the client's temperature, truncation and penalties."""
    greedy = body.temperature < _GREEDY or body.top_p == 0.0
    return Sampling(
        max_tokens=0,
        temperature=0.0 if greedy else body.temperature,
        top_p=body.top_p or 1.0,
        top_k=max(0, body.top_k),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )


def trace(request: Request) -> str:
    """Return the client's W3C traceparent; empty when absent or invalid."""
    header = request.headers.get("traceparent", "")
    return header if _TRACE.fullmatch(header) else ""


def deadline(request: Request) -> int:
    """Return the deadline in milliseconds: X-Deadline-Ms, else the setting.

    Raises `InvalidRequest` unless the header is a number from 1 ms to 24 h.
    """
    config: Config = request.app.state.config
    header = request.headers.get("x-deadline-ms")
    if header is None:
        return config.deadline_ms
    if not re.fullmatch("[0-9]{1,8}", header) or not 1 <= int(header) <= _LONGEST_MS:
        raise InvalidRequest(
            f"Invalid X-Deadline-Ms header: expected an integer from 1 to {_LONGEST_MS}.",
            code="invalid_value",
        )
    return int(header)


def tenant(request: Request, body: SampledRequest) -> str:
    """Return the billing tenant: the API key's or, without keys, the request's `user`."""
    return tenant_of(request) or body.user or ""


def seed(body: SampledRequest) -> int:
    """Return the client's seed as unsigned 64 bits, or a random one."""
    return secrets.randbits(63) if body.seed is None else body.seed & (2**64 - 1)


def requested(
    request: Request,
    body: SampledRequest,
    head: Head,
    prompts: tuple[Prompt, ...],
    how: Sampling,
    *,
    param: str,
    max_tokens: int | None,
    n: int,
) -> GenerationRequest:
    """Create the generation request; `param` is the field that contains the prompts."""
    return GenerationRequest(
        RequestIdentity(
            head.id,
            trace=trace(request),
            tenant=tenant(request, body),
            salt=(body.cache_salt or "").encode(),
            quota=quota_of(request),
        ),
        prompts,
        SamplingOptions(
            how,
            seed=seed(body),
            n=n,
            ignore_eos=body.ignore_eos,
            bad_words=body.bad_words,
            constraint=body.constraint,
            beams=body.beams,
        ),
        model=head.model,
        param=param,
        text=TextOptions(body.stop, body.include_stop_str_in_output, body.skip_special_tokens),
        limits=RequestLimits(
            max_tokens, deadline(request), body.priority, body.truncate_prompt_tokens
        ),
        sinks=RequestSinks(
            admission_headers=AdmissionHeaders.of(request), timeline=timeline_of(request)
        ),
    )


def check_choices(body: SampledRequest, prompts: int, config: Config) -> None:
    """Raise `InvalidRequest` when prompts times n exceeds the limit per request."""
    if prompts * body.at_once <= config.max_choices:
        return
    if prompts == 1:
        raise invalid(
            "n",
            f"Invalid 'n': integer above maximum value. Expected a value <= {config.max_choices}, "
            f"but got {body.n} instead.",
            "integer_above_max_value",
        )
    raise invalid(
        "prompt",
        f"Invalid 'prompt': {prompts} prompts times {body.at_once} choices are more than "
        f"{config.max_choices}.",
        "array_above_max_length",
    )
