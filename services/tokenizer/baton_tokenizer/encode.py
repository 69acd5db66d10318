"""Encodes text to token ids in bounded time."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

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

    def text(self, text: str, *, add_special: bool, limit: int, keep: int = 0) -> Ids:
        """Encode plain text. The texts of special tokens are those tokens.

        Args:
            keep: most tokens of the result, whose text is cut behind; 0 cuts nothing.
        """
        tokenizer = self._vocab.tokenizer
        if not keep:
            return self._bounded(tokenizer, text, add_special, limit, "prompt")
        room = _room(tokenizer, keep, add_special=add_special)
        encoding, _ = self._prefix(tokenizer, text, False, room, "prompt")
        encoding.truncate(room)
        return Ids(tokenizer.post_process(encoding, None, add_special).ids)

    def pair(self, first: str, second: str, limit: int, keep: int = 0) -> Ids:
        """Encode two texts joined by the post-processor, with its special tokens.

        Each counts up to `reach`; beyond it they cannot fit, so the work is bounded. The texts of
        special tokens stay text, since a client writes both.

        Args:
            keep: most tokens of the result; the longer text is cut first, as transformers does
                with `truncation="longest_first"`. 0 cuts nothing.
        """
        if keep:
            return self._cut_pair(first, second, keep)
        reach = self.reach(limit)
        texts, tokenizer = (first[:reach], second[:reach]), self._vocab.literal.tokenizer
        encoding = tokenizer.encode_batch_fast([texts], add_special_tokens=True)[0]
        limit = limit or self._max_tokens
        if len(encoding.ids) <= limit and max(len(first), len(second)) > reach:
            raise _too_long(reach, limit, "prompt")
        return Ids(encoding.ids, len(encoding.ids) > limit, _second(encoding))

    def _cut_pair(self, first: str, second: str, keep: int) -> Ids:
        tokenizer = self._vocab.literal.tokenizer
        room = _room(tokenizer, keep, add_special=True, is_pair=True)
        left, _ = self._prefix(tokenizer, first, False, room, "prompt")
        right, _ = self._prefix(tokenizer, second, False, room, "prompt")
        for side, size in zip((left, right), _shares(len(left), len(right), room), strict=True):
            side.truncate(size)
        encoding = tokenizer.post_process(left, right)
        return Ids(encoding.ids, second=_second(encoding))

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
        """Encode a text, or a prefix that exceeds the limit."""
        encoding, is_whole = self._prefix(tokenizer, text, add_special, limit, param)
        return Ids(encoding.ids, not is_whole or len(encoding.ids) > (limit or self._max_tokens))

    def _prefix(
        self, tokenizer: Tokenizer, text: str, add_special: bool, limit: int, param: str
    ) -> tuple[Encoding, bool]:
        """Encode growing prefixes until one exceeds the limit or is the complete text. Returns the
        last one, and whether it is complete.

        Lengths double up to `reach`, so the work does not depend on the length of the text. Raises
        `InvalidRequest` for a text beyond it whose prefix still fits: it is mostly padding.
        """
        limit, reach = limit or self._max_tokens, self.reach(limit)
        size = min((limit + _SLACK) * _FIRST_GUESS, reach)
        while True:
            part = text[:size]
            [encoding] = tokenizer.encode_batch_fast([part], add_special_tokens=add_special)
            if size >= len(text):
                return encoding, True
            if len(encoding.ids) > limit + _SLACK:
                return encoding, False
            if size >= reach:
                raise _too_long(reach, limit, param)
            size = min(size * 2, reach)


def _second(encoding: Encoding) -> int:
    """Index of the first token of the second text."""
    types = encoding.type_ids
    return types.index(1) if 1 in types else 0


def _room(tokenizer: Tokenizer, keep: int, *, add_special: bool, is_pair: bool = False) -> int:
    """Number of tokens of the text among those to keep."""
    added = tokenizer.num_special_tokens_to_add(is_pair) if add_special else 0
    if keep <= added:
        raise InvalidRequest(
            f"Invalid 'truncate_prompt_tokens': the model adds {added} special tokens. Send a "
            f"number above {added}.",
            code="invalid_value",
            param="truncate_prompt_tokens",
        )
    return keep - added


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths of two texts cut to `room` tokens, the longer one first."""
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (short, long) if first <= second else (long, short)


def _too_long(reach: int, limit: int, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The text has more than {reach} characters, too many for a limit of {limit} tokens.",
        code="context_length_exceeded",
        param=param,
    )
