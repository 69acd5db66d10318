"""Encodes the texts of a request: its prompts, expected output and bad words, as token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from msgspec import structs

from baton.errors import InvalidRequest
from baton.protocol import Media, MediaItem, PreparedMedia
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.catalogue import ModelInfo
from baton_gateway.clients.mm_preprocess import MediaClient
from baton_gateway.clients.tokenizer import TokenizerClient
from baton_gateway.generation.admission import (
    check_media,
    check_pixels,
    check_scored,
    check_text,
    check_uncut,
    too_long,
)
from baton_gateway.generation.bad_words import encode_bad_words
from baton_gateway.generation.placeholders import accompanied, alone, attended, expand
from baton_gateway.generation.request import (
    ChatPrompt,
    EncodedPrompt,
    GenerationRequest,
    PairPrompt,
    Prompt,
    SpeechPrompt,
    TextPrompt,
)
from baton_gateway.generation.thinking import needs_thinking, thoughtful
from baton_gateway.generation.truncation import encode_limit, truncated
from baton_gateway.http.errors import invalid

_ENCODED_AT_ONCE = 16
"""Most prompts of one request that are encoded concurrently, to keep all tokenizers busy."""
_Key: TypeAlias = tuple[tuple[str, str, bool | None], ...]
_Preparing: TypeAlias = dict[_Key, asyncio.Future[tuple[PreparedMedia, ...]]]
"""(modality, URL, with sound) -> prepared media of a request's prompts."""


class RequestEncoder:
    """Sends texts to the tokenizers of a model, and media to its preprocessors."""

    def __init__(
        self, tokenizers: TokenizerClient, preprocessors: MediaClient, max_pixel_bytes: int
    ) -> None:
        """`max_pixel_bytes`: maximum bytes of the media of one request, over all of its prompts."""
        self._tokenizers, self._preprocessors = tokenizers, preprocessors
        self._max_pixel_bytes = max_pixel_bytes

    async def prompts(
        self, request: GenerationRequest, model_info: ModelInfo
    ) -> list[EncodedPrompt]:
        """Encode every prompt. Raises `BatonError`, for example for one that is too long."""
        encoded: list[EncodedPrompt] = []
        media: _Preparing = {}
        for first in range(0, len(request.prompts), _ENCODED_AT_ONCE):
            prompts = request.prompts[first : first + _ENCODED_AT_ONCE]
            encoded += await asyncio.gather(
                *(self._prompt(request, prompt, model_info, media) for prompt in prompts)
            )
            check_pixels(request, encoded, self._max_pixel_bytes)
        return encoded

    async def _prompt(
        self, request: GenerationRequest, prompt: Prompt, model_info: ModelInfo, media: _Preparing
    ) -> EncodedPrompt:
        if isinstance(prompt, tuple):
            return EncodedPrompt(truncated(request, PackedTokens.of(prompt), model_info))
        if isinstance(prompt, MediaItem):
            [item] = await self._prepared((prompt,), request, model_info, media)
            ids, placed = alone(item)
            return EncodedPrompt(ids, media=(placed,))
        if isinstance(prompt, SpeechPrompt):
            return await self._speech(request, prompt, model_info)
        if request.limits.truncate_prompt_tokens is None:
            check_text(request, prompt, model_info)
        items: tuple[PreparedMedia, ...] = ()
        if isinstance(prompt, ChatPrompt | PairPrompt) and prompt.media:
            check_uncut(request)
            check_media(prompt.media, model_info)  # Before they are fetched: it may take none.
            items = await self._prepared(prompt.media, request, model_info, media)
        return await self._text_with_media(request, prompt, model_info, items)

    async def _text_with_media(
        self,
        request: GenerationRequest,
        prompt: ChatPrompt | TextPrompt | PairPrompt,
        model_info: ModelInfo,
        items: tuple[PreparedMedia, ...],
    ) -> EncodedPrompt:
        """Encode a text, cut it as the request says, and expand the placeholders of its media."""
        encoded = await self._text(request, prompt, model_info)
        ids = truncated(request, encoded.ids, model_info)
        if isinstance(prompt, ChatPrompt) and prompt.keep:
            ids = PackedTokens.of(ids[: prompt.keep])
        all_media: tuple[Media, ...] = ()
        if items:
            ids, all_media = expand(ids, items)
            check_scored(request, items)
        if len(ids) > model_info.max_model_len:
            raise too_long(request, len(ids), model_info)
        return encoded._replace(ids=ids, media=all_media)

    async def _speech(
        self, request: GenerationRequest, prompt: SpeechPrompt, model_info: ModelInfo
    ) -> EncodedPrompt:
        if isinstance(prompt.prompt, tuple) and prompt.media.num_alongside:
            ids, placed = accompanied(prompt.prompt, prompt.media)
            if placed.length > model_info.max_model_len:
                raise too_long(request, placed.length, model_info)
            return EncodedPrompt(ids, media=(placed,))
        if isinstance(prompt.prompt, tuple):
            ids, placed = attended(prompt.prompt, prompt.media)
            return EncodedPrompt(ids, media=(placed,), num_states=prompt.num_states)
        encoded = await self._text(request, prompt.prompt, model_info)
        ids, media = expand(encoded.ids, (prompt.media,))
        if len(ids) > model_info.max_model_len:
            raise too_long(request, len(ids), model_info)
        return encoded._replace(ids=ids, media=media)

    async def _text(
        self,
        request: GenerationRequest,
        prompt: ChatPrompt | TextPrompt | PairPrompt,
        model_info: ModelInfo,
    ) -> EncodedPrompt:
        tokenizers = self._tokenizers.of(model_info.tokenizer)
        try:
            return await tokenizers.encode_prompt(
                prompt, encode_limit(request, model_info), request.identity.trace
            )
        except InvalidRequest as error:
            if request.pooling is None:
                raise
            raise InvalidRequest(error.message, code=error.code, param=request.param) from error

    async def _prepared(
        self,
        items: Sequence[MediaItem],
        request: GenerationRequest,
        model_info: ModelInfo,
        media: _Preparing,
    ) -> tuple[PreparedMedia, ...]:
        """Prepare the media of a prompt. Media shared by several prompts, such as the image of a
        query with many documents, are prepared once."""
        identity, key = request.identity, _key(items)
        if key not in media:
            preparing = self._preprocessors.prepare(
                items, model_info.model, identity.trace, identity.tenant, identity.owner
            )
            media[key] = asyncio.ensure_future(preparing)
        return await media[key]

    async def thinking(
        self, request: GenerationRequest, prompts: list[EncodedPrompt], model_info: ModelInfo
    ) -> GenerationRequest:
        """Return the request with its thinking budget, and its thinking in front of a
        constraint."""
        if not needs_thinking(request, model_info):
            return request
        tags = model_info.formats.thinking_tags
        assert tags is not None
        ids = [await self._tokenizers.of(model_info.tokenizer).token(tag) for tag in tags]
        return thoughtful(request, prompts, model_info, (ids[0], ids[1]))

    async def prediction(
        self, request: GenerationRequest, model_info: ModelInfo
    ) -> GenerationRequest:
        """Return the request with its expected output as ids.

        Raises `InvalidRequest` if it is longer than any output.
        """
        if not request.predicted_text:
            return request
        tokenizers = self._tokenizers.of(model_info.tokenizer)
        prompt = TextPrompt(request.predicted_text, add_special=False)
        ids = (await tokenizers.encode_prompt(prompt, model_info.max_model_len)).ids
        if len(ids) > model_info.max_model_len:
            raise invalid(
                "prediction",
                f"Invalid 'prediction': it has more than {model_info.max_model_len} tokens, more "
                "than an answer can have.",
                "context_length_exceeded",
            )
        return replace(request, prediction=ids.column)

    async def bad_words(
        self, request: GenerationRequest, model_info: ModelInfo
    ) -> GenerationRequest:
        """Return the request with its bad words among the sampling parameters, as ids."""
        sampling = request.sampling
        if not sampling.bad_words:
            return request
        words = await encode_bad_words(
            sampling.bad_words, self._tokenizers.of(model_info.tokenizer)
        )
        params = structs.replace(sampling.params, bad_words=words)
        return replace(request, sampling=replace(sampling, params=params))


def _key(items: Sequence[MediaItem]) -> _Key:
    return tuple((item.modality, item.url, item.sound) for item in items)
