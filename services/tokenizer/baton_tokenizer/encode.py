"""Encodes text to token ids in bounded time."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Tokenizer

from baton.errors import InvalidRequest
from baton_tokenizer.chat_template import Rendered
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary

_FIRST_GUESS = 4
"""Assumed characters per token in the first attempt at a long text."""
_DENSEST = 16
"""Maximum characters per token: prose has 4. A request of only padding, which may have more, could
occupy the tokenizer for minutes."""
_ALWAYS = 262_144
"""Number of characters that are encoded regardless of the limit."""
_SLACK = 64
"""Tokens by which a prefix must exceed the limit, since its last tokens may differ from the
text's."""


class Ids(NamedTuple):
    """Result of encoding."""

    ids: list[int]
    truncated: bool = False
    """`ids` exceed the limit and may be incomplete."""
    second: int = 0
    """Index of the first token of a pair's second text, if the vocabulary distinguishes the two."""


class Encoder:
    """Encodes text with one vocabulary."""

    def __init__(self, vocab: TokenizerVocabulary, max_tokens: int) -> None:
        self._vocab = vocab
        self._max_tokens = max_tokens

    def reach(self, limit: int) -> int:
        """Number of characters beyond which a text cannot, or may not, fit into `limit` tokens."""
        tokens = (limit or self._max_tokens) + _SLACK + 1
        return min(tokens * self._vocab.longest, max(tokens * _DENSEST, _ALWAYS))

    def text(self, text: str, *, add_special: bool, limit: int) -> Ids:
        """Encode plain text. The texts of special tokens are those tokens."""
        return self._bounded(self._vocab.tokenizer, text, add_special, limit, "prompt")

    def pair(self, first: str, second: str, limit: int) -> Ids:
        """Encode two texts joined by the post-processor, with its special tokens.

        Each counts up to `reach`; beyond it they cannot fit, so the work is bounded. The texts of
        special tokens stay text, since a client writes both.
        """
        reach = self.reach(limit)
        texts, tokenizer = (first[:reach], second[:reach]), self._vocab.literal.tokenizer
        encoding = tokenizer.encode_batch_fast([texts], add_special_tokens=True)[0]
        limit = limit or self._max_tokens
        if len(encoding.ids) <= limit and max(len(first), len(second)) > reach:
            raise _too_long(reach, limit, "prompt")
        types = encoding.type_ids
        return Ids(encoding.ids, len(encoding.ids) > limit, types.index(1) if 1 in types else 0)

    def chat(self, prompt: Rendered, limit: int) -> Ids:
        """Encode a rendered conversation, equal to transformers' `apply_chat_template`.

        The result differs only where a client's text imitates special tokens: these are encoded as
        text.
        """
        literal = self._vocab.literal
        respelled = literal.respell(prompt.text, prompt.marks) if prompt.marks else None
        tokenizer = self._vocab.tokenizer if respelled is None else literal.tokenizer
        return self._bounded(tokenizer, respelled or prompt.text, False, limit, "messages")

    def _bounded(
        self, tokenizer: Tokenizer, text: str, add_special: bool, limit: int, param: str
    ) -> Ids:
        """Encode growing prefixes until one exceeds the limit or is the complete text.

        Lengths double up to `reach`, so the work does not depend on the length of the text. Raises
        `InvalidRequest` for a text beyond it whose prefix still fits: it is mostly padding.
        """
        limit, reach = limit or self._max_tokens, self.reach(limit)
        size = min((limit + _SLACK) * _FIRST_GUESS, reach)
        while True:
            part = text[:size]
            ids = tokenizer.encode_batch_fast([part], add_special_tokens=add_special)[0].ids
            if size >= len(text):
                return Ids(ids, truncated=len(ids) > limit)
            if len(ids) > limit + _SLACK:
                return Ids(ids, truncated=True)
            if size >= reach:
                raise _too_long(reach, limit, param)
            size = min(size * 2, reach)


def _too_long(reach: int, limit: int, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The text has more than {reach} characters, too many for a limit of {limit} tokens.",
        code="context_length_exceeded",
        param=param,
    )
