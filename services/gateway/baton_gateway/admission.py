"""What a generation must satisfy once the model is known. Everything here precedes the worker."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from baton.errors import InvalidRequest, NotFound
from baton.protocol import Sampling
from baton.tokens import derive_seed
from baton_gateway.generation import Generation


@dataclass(frozen=True, slots=True)
class Facts:
    """The served model as the gateway needs to know it."""

    model: str
    max_length: int
    """Longest sequence, prompt and output together."""
    vocab_size: int
    """Every token id of a client is below it."""
    eos_ids: tuple[int, ...]
    media_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()


def check_model(name: str, facts: Facts) -> None:
    """Raise `NotFound` for any model but the served one."""
    if name != facts.model:
        raise NotFound(
            f"The model `{name[:200]}` does not exist or you do not have access to it.",
            code="model_not_found",
            param="model",
        )


def check_ids(generation: Generation, facts: Facts) -> None:
    """Raise `InvalidRequest` for token ids that the model does not have, wherever they stand."""
    sampling = generation.sampling
    check_range(sampling.logit_bias, "logit_bias", facts)
    check_range(sampling.stop_ids, "stop_token_ids", facts)
    check_range(sampling.allowed_ids, "allowed_token_ids", facts)
    several = len(generation.prompts) > 1
    for number, prompt in enumerate(generation.prompts):
        if isinstance(prompt, tuple):
            param = f"{generation.param}[{number}]" if several else generation.param
            if len(prompt) > facts.max_length:
                raise too_long(generation, len(prompt), facts)
            check_prompt_ids(prompt, param, facts)


def check_range(ids: Iterable[int], param: str, facts: Facts) -> None:
    """Raise `InvalidRequest` unless every id is one of the vocabulary."""
    for token in ids:
        if not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                f"Invalid '{param}': {str(token)[:30]} is not a token id of this model. Expected "
                f"a value between 0 and {facts.vocab_size - 1}.",
                code="invalid_value",
                param=param,
            )


def check_prompt_ids(ids: tuple[int, ...], param: str, facts: Facts) -> None:
    """Raise `InvalidRequest` for ids outside the vocabulary and for bare media placeholders."""
    if not ids or (min(ids) >= 0 and max(ids) < facts.vocab_size and not facts.media_ids):
        return
    for position, token in enumerate(ids):
        check_range((token,), f"{param}[{position}]", facts)
        if token in facts.media_ids:
            raise InvalidRequest(
                f"Token {token} stands for media and cannot be sent as an id.",
                code="invalid_value",
                param=f"{param}[{position}]",
            )


def fit(generation: Generation, prompt: array[int], facts: Facts) -> int:
    """Most tokens that a prompt may be continued with. Raises `InvalidRequest` when none fit."""
    if not prompt:
        raise InvalidRequest(
            f"Invalid '{generation.param}': it has no tokens. Send at least one.",
            code="empty_string",
            param=generation.param,
        )
    wanted = generation.max_tokens
    # Log-probabilities of a prompt need one step of the model, and a step samples.
    if len(prompt) + max(1, wanted or 0) > facts.max_length:
        raise too_long(generation, len(prompt), facts)
    return facts.max_length - len(prompt) if wanted is None else max(1, wanted)


def too_long(generation: Generation, length: int, facts: Facts) -> InvalidRequest:
    """The error of a prompt that does not fit the context, in OpenAI's words."""
    param = generation.param
    wanted = generation.max_tokens
    if wanted is None or length > facts.max_length:
        over = "at least " if length > facts.max_length else ""
        request = f"your {param} resulted in {over}{length} tokens"
    else:
        total = length + wanted
        request = (
            f"you requested {total} tokens ({length} in the {param}, {wanted} in the completion)"
        )
    return InvalidRequest(
        f"This model's maximum context length is {facts.max_length} tokens. However, {request}. "
        f"Please reduce the length of the {param} or completion.",
        code="context_length_exceeded",
        param=param,
    )


def sampling_of(generation: Generation, choice: int, max_tokens: int, facts: Facts) -> Sampling:
    """The wire's sampling parameters of one choice."""
    eos = () if generation.ignore_eos else facts.eos_ids
    return msgspec.structs.replace(
        generation.sampling,
        max_tokens=max_tokens,
        seed=derive_seed(generation.seed, choice),
        stop_ids=tuple(dict.fromkeys((*eos, *generation.sampling.stop_ids))),
    )
