"""Encodes a query and a document as one sequence."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.errors import InvalidRequest
from baton.protocol import EncodeChat, EncodePair
from baton_tokenizer.chat_template import ChatTemplates
from baton_tokenizer.encode import Encoder, Ids
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary


class PairEncoder:
    """Joins pairs by the model's pair template, else by the post-processor of its vocabulary."""

    def __init__(self, vocab: TokenizerVocabulary, encoder: Encoder) -> None:
        self._encoder, self._template = encoder, vocab.pair_template
        self._renderer: ChatTemplates | None = None
        if self._template is not None:
            texts = {"default": self._template.text}
            self._renderer = ChatTemplates(texts, {}, vocab.literal, self._template.media)

    def encode(self, request: EncodePair) -> Ids:
        """Encode a pair. Raises `InvalidRequest` for parts that the model does not accept."""
        if self._renderer is None or self._template is None:
            query, document = _text(request.query), _text(request.document)
            return self._encoder.pair(query, document, request.limit, request.keep)
        if request.keep:
            raise InvalidRequest(
                "Unsupported value: 'truncate_prompt_tokens' cannot be used with this model, whose "
                "template puts words behind the document. Shorten the texts.",
                code="unsupported_value",
                param="truncate_prompt_tokens",
            )
        rendered = self._renderer.render(_chat(request), self._encoder.reach(request.limit))
        encoding = self._encoder.chat(rendered, request.limit)
        ids = [*encoding.ids, *self._template.end]
        return Ids(ids, encoding.truncated or 0 < request.limit < len(ids))


def _chat(request: EncodePair) -> EncodeChat:
    """The conversation that pair templates expect."""
    sides = (("query", request.query), ("document", request.document))
    messages = [{"role": role, "content": msgspec.Raw(content)} for role, content in sides]
    return EncodeChat(request.id, msgspec.json.encode(messages), add_generation_prompt=False)


def _text(side: bytes) -> str:
    """The text of the query or document, its parts joined by line breaks."""
    try:
        content: str | list[dict[str, Any]] = msgspec.json.decode(
            side, type=str | list[dict[str, Any]]
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The pair is malformed: {error}.") from error
    parts = [{"text": content}] if isinstance(content, str) else content
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(
            "This model scores pairs of texts only. Send no images.", code="unsupported_value"
        )
    return "\n".join(map(str, texts))
