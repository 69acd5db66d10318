"""Admission checks that need the model's limits. They run before any worker sees the request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from baton.errors import InvalidRequest, NotFound
from baton.protocol import MediaItem, PreparedMedia, Sampling, SpeechInfo, StreamedSpeechInfo
from baton.protocol.token_columns import derive_seed
from baton_gateway.catalogue import Catalogue, ModelInfo
from baton_gateway.generation.beam_search import alternatives
from baton_gateway.generation.request import (
    ChatPrompt,
    EncodedPrompt,
    GenerationRequest,
    PairPrompt,
    Prompt,
    SpeechPrompt,
    TextPrompt,
)
from baton_gateway.http.errors import ContextTooLong

MAX_ALTERNATIVES = 255
"""Most alternatives per position that a worker reports."""

_DENSEST, _SLACK, _ALWAYS_ENCODED = 16, 65, 262_144
"""Characters per token, tokens beyond the limit, and characters that the tokenizer always encodes;
see `baton_tokenizer.encode`."""


def check_model(name: str | None, catalogue: Catalogue) -> ModelInfo | None:
    """Return the catalogue's entry of a model; None while it, or any model, is not known yet.

    None as `name` means the only model, without an adapter. Raises `NotFound` for a name that is
    not in the catalogue, `InvalidRequest` for no name if there are several models.
    """
    names, models = catalogue.names, catalogue.models
    if name is None and len(models) > 1:
        raise InvalidRequest(
            f"Missing required parameter: 'model'. This server has {', '.join(names)[:200]}.",
            code="missing_required_parameter",
            param="model",
        )
    if name is not None and names and name not in names:
        raise no_model(name)
    requested = models[0] if name is None and models else name
    return None if requested is None else catalogue.get(requested)


def no_model(name: str) -> NotFound:
    """Error for a model that does not exist or is not permitted for the API key."""
    return NotFound(
        f"The model `{name[:200]}` does not exist or you do not have access to it.",
        code="model_not_found",
        param="model",
    )


def check_task(generation: GenerationRequest, model_info: ModelInfo) -> ModelInfo:
    """Return the limits for this request. Raises `InvalidRequest` when the model cannot serve its
    task."""
    pooling = model_info.pooling
    if isinstance(model_info.speech, SpeechInfo | StreamedSpeechInfo) and not _is_speech(
        generation
    ):
        raise InvalidRequest(
            f"The model `{model_info.name}` takes recordings alone. {serves(model_info)}",
            code="unsupported_value",
            param="model",
        )
    if generation.pooling is not None:
        return (
            model_info
            if pooling is None
            else replace(model_info, max_model_len=pooling.max_model_len)
        )
    if pooling is not None and not pooling.generates:
        raise InvalidRequest(
            f"The model `{model_info.name}` does not generate text. {serves(model_info)}",
            code="unsupported_value",
            param="model",
        )
    return model_info


def _is_speech(generation: GenerationRequest) -> bool:
    return all(isinstance(prompt, SpeechPrompt) for prompt in generation.prompts)


def serves(model_info: ModelInfo) -> str:
    """Return one sentence on the tasks that the model serves, for error messages."""
    if isinstance(model_info.speech, SpeechInfo | StreamedSpeechInfo):
        return "It transcribes speech: use /v1/audio/transcriptions."
    return _SERVES["generate" if model_info.pooling is None else model_info.pooling.task]


_SERVES = {
    "generate": "It generates text: use /v1/chat/completions or /v1/completions.",
    "embed": "It makes embeddings: use /v1/embeddings.",
    "classify": "It classifies texts: use /classify.",
    "score": "It scores pairs of texts: use /score or /rerank.",
    "reward": "It gives rewards: use /pooling.",
}


def check_total(generation: GenerationRequest, total: int, most: int) -> None:
    """Raise `InvalidRequest` when the texts of a request exceed `most` tokens in total."""
    if generation.pooling is not None and total > most:
        raise InvalidRequest(
            f"Invalid '{generation.param}': {total} tokens in one request are more than {most}. "
            "Send the texts in several requests.",
            code="context_length_exceeded",
            param=generation.param,
        )


def check_adapter(generation: GenerationRequest, model_info: ModelInfo) -> None:
    """Check that a resumed stream continues with the adapter weights of its beginning. Raises
    `InvalidRequest` if the adapter of that name has changed."""
    if generation.resumed and generation.adapter != model_info.adapter:
        raise InvalidRequest(
            f"The adapter `{model_info.name}` has been loaded again with other weights since this "
            "stream began. Ask again.",
            code="adapter_changed",
            param="model",
        )


def check_ids(generation: GenerationRequest, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` when a field contains token ids outside the vocabulary."""
    sampling = generation.sampling.params
    check_range(sampling.logit_bias, "logit_bias", model_info)
    check_range(sampling.stop_ids, "stop_token_ids", model_info)
    check_range(sampling.allowed_ids, "allowed_token_ids", model_info)
    several = len(generation.prompts) > 1
    for number, prompt in enumerate(generation.prompts):
        if isinstance(prompt, tuple):
            param = f"{generation.param}[{number}]" if several else generation.param
            cut = generation.limits.truncate_prompt_tokens is not None
            if len(prompt) > model_info.max_model_len and not cut:
                raise too_long(generation, len(prompt), model_info)
            check_prompt_ids(prompt, param, model_info)


def check_allowed_ids(generation: GenerationRequest, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` when each allowed token is a bad word, or ends the output before
    `min_tokens`, so that none is left to sample. Needs the bad words as ids."""
    params = generation.sampling.params
    forbidden = {word[0] for word in params.bad_words if len(word) == 1}
    if params.min_tokens:
        forbidden.update(_stop_ids(generation, model_info))
    if params.allowed_ids and forbidden.issuperset(params.allowed_ids):
        raise InvalidRequest(
            "Invalid 'allowed_token_ids': 'bad_words', or 'min_tokens' with ids that end the "
            "output, forbid all of them.",
            code="invalid_value",
            param="allowed_token_ids",
        )


def check_beams(generation: GenerationRequest, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for a beam search that needs too many alternatives per step or is
    combined with a grammar."""
    beams, params = generation.sampling.beams, generation.sampling.params
    if beams is None:
        return
    if params.grammar is not None:
        raise InvalidRequest(
            "Unsupported value: 'use_beam_search' cannot be used where the output must follow a "
            "grammar.",
            code="unsupported_value",
            param="use_beam_search",
        )
    stops = len({*params.stop_ids, *model_info.eos_ids})
    most = min(MAX_ALTERNATIVES, model_info.vocab_size)
    if alternatives(beams.width, stops) > most:
        raise InvalidRequest(
            f"Invalid 'beam_width': {beams.width} beams and {stops} ids that end an "
            f"output need more than {most} alternatives per step. Use fewer of either.",
            code="integer_above_max_value",
            param="beam_width",
        )


def check_range(ids: Iterable[int], param: str, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` unless every id is in the vocabulary."""
    for token in ids:
        if not 0 <= token < model_info.vocab_size:
            raise InvalidRequest(
                f"Invalid '{param}': {str(token)[:30]} is not a token id of this model. Expected "
                f"a value between 0 and {model_info.vocab_size - 1}.",
                code="invalid_value",
                param=param,
            )


def check_prompt_ids(ids: tuple[int, ...], param: str, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for ids outside the vocabulary and for media placeholders without
    media."""
    if not ids or (min(ids) >= 0 and max(ids) < model_info.vocab_size and not model_info.media_ids):
        return
    for position, token in enumerate(ids):
        check_range((token,), f"{param}[{position}]", model_info)
        if token in model_info.media_ids:
            raise InvalidRequest(
                f"Token {token} stands for media and cannot be sent as an id: "
                "send the media in a chat.",
                code="invalid_value",
                param=f"{param}[{position}]",
            )


def clamp_max_tokens(
    generation: GenerationRequest, prompt: Sequence[int], model_info: ModelInfo
) -> int:
    """Return the most tokens to generate for a prompt. Raises `InvalidRequest` when none fit."""
    if not prompt:
        raise InvalidRequest(
            f"Invalid '{generation.param}': it has no tokens. Send at least one.",
            code="empty_string",
            param=generation.param,
        )
    if generation.pooling is not None:
        if len(prompt) > model_info.max_model_len:
            raise too_long(generation, len(prompt), model_info)
        return 0
    requested = generation.limits.max_tokens
    # Prompt log-probabilities need one model step, and each step samples one token.
    if len(prompt) + max(1, requested or 0) > model_info.max_model_len:
        raise too_long(generation, len(prompt), model_info)
    return model_info.max_model_len - len(prompt) if requested is None else max(1, requested)


def too_long(generation: GenerationRequest, length: int, model_info: ModelInfo) -> InvalidRequest:
    """Error for a prompt that exceeds the context length, worded like OpenAI's."""
    param = generation.param
    requested = generation.limits.max_tokens
    if requested is None or length > model_info.max_model_len:
        over = "at least " if length > model_info.max_model_len else ""
        request = f"your {param} resulted in {over}{length} tokens"
    else:
        total = length + requested
        request = (
            f"you requested {total} tokens ({length} in the {param}, {requested} in the completion)"
        )
    return ContextTooLong(
        f"This model's maximum context length is {model_info.max_model_len} tokens. However, "
        f"{request}. Please reduce the length of the {param}"
        f"{'' if generation.pooling else ' or completion'}.",
        param=param,
        limit=model_info.max_model_len,
        length=length,
        requested=requested,
    )


def check_text(request: GenerationRequest, prompt: Prompt, model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for text that the tokenizer would refuse, before it is sent there.

    The bound is the tokenizer's for text of any vocabulary; JSON spells a character in 6 bytes at
    most.
    """
    most = max(_ALWAYS_ENCODED, (model_info.max_model_len + _SLACK) * _DENSEST)
    match prompt:
        case ChatPrompt():
            longest = -(-len(prompt.messages) // 6)
        case TextPrompt():
            longest = len(prompt.text)
        case PairPrompt():
            longest = max(_num_characters(prompt.query), _num_characters(prompt.document))
        case _:
            return
    if longest > most and model_info.max_model_len:
        raise ContextTooLong(
            f"This model's maximum context length is {model_info.max_model_len} tokens. However, "
            f"your {request.param} has more than {most} characters. Please reduce the length of "
            f"the {request.param}.",
            param=request.param,
            limit=model_info.max_model_len,
            length=None,
            requested=request.limits.max_tokens,
        )


def _num_characters(content: str | Sequence[Mapping[str, Any]]) -> int:
    """Number of characters of a text, or of the texts among content parts."""
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) for part in content)


def check_pixels(
    generation: GenerationRequest, prompts: Iterable[EncodedPrompt], most: int
) -> None:
    """Raise `InvalidRequest` if the media of all prompts exceed `most` bytes. A tensor shared by
    several prompts counts once."""
    tensors = {id(item.pixels): item.pixels for prompt in prompts for item in prompt.media}
    if sum(tensor.num_bytes for tensor in tensors.values()) > most:
        raise InvalidRequest(
            f"Invalid '{generation.param}': the media of one request have more than {most >> 20} "
            "MiB as the model takes them. Send them in several requests.",
            code="image_too_large",
            param=generation.param,
        )


def check_uncut(request: GenerationRequest) -> None:
    """Raise `InvalidRequest` for a prompt with media that might be truncated."""
    if request.limits.truncate_prompt_tokens is not None:
        raise InvalidRequest(
            "Unsupported value: 'truncate_prompt_tokens' cannot be used with media: it "
            "could cut them. Shorten the conversation.",
            code="unsupported_value",
            param="truncate_prompt_tokens",
        )


def check_scored(request: GenerationRequest, media: Sequence[PreparedMedia]) -> None:
    """Raise `InvalidRequest` for scores of a prompt whose tokens see those behind them."""
    if request.sampling.params.prompt_logprobs >= 0 and any(item.whole_prompt for item in media):
        raise InvalidRequest(
            "Unsupported value: 'prompt_logprobs' of a prompt with an image: the tokens of this "
            "model's prompts see those behind them. Leave it out.",
            code="unsupported_value",
            param="prompt_logprobs",
        )


def check_media(media: Sequence[MediaItem], model_info: ModelInfo) -> None:
    """Raise `InvalidRequest` for media in the prompt of a model whose vocabulary has no
    placeholder."""
    if media and not model_info.media_ids:
        raise InvalidRequest(
            f"The model {model_info.name} does not take {media[0].modality} input. It takes text "
            "only.",
            code="unsupported_value",
            param=media[0].param,
        )


def sampling_of(
    generation: GenerationRequest, choice: int, max_tokens: int, model_info: ModelInfo
) -> Sampling:
    """Return the sampling parameters of one choice as a wire message."""
    return msgspec.structs.replace(
        generation.sampling.params,
        max_tokens=max_tokens,
        seed=derive_seed(generation.sampling.seed, choice),
        stop_ids=_stop_ids(generation, model_info),
    )


def _stop_ids(generation: GenerationRequest, model_info: ModelInfo) -> tuple[int, ...]:
    """Ids that end the output: those of the model, unless they are ignored, and of the client."""
    eos = () if generation.sampling.ignore_eos else model_info.eos_ids
    return tuple(dict.fromkeys((*eos, *generation.sampling.params.stop_ids)))
