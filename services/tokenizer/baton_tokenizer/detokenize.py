"""Incremental decoding of token ids: complete characters only, which never change later."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable

from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary


class Alphabet:
    """Bytes and text of each token, prepared for decoding."""

    def __init__(self, vocab: TokenizerVocabulary) -> None:
        self.pieces = vocab.pieces
        """Bytes of each token."""
        self.drops_space = vocab.spelling.drops_space
        self.texts = tuple(_complete_text(piece) for piece in vocab.pieces)
        """Text of each token; None for parts of characters."""
        special = vocab.special_ids
        self.plain_texts = tuple("" if i in special else t for i, t in enumerate(self.texts))
        """As `texts`, but empty for special tokens."""


def _complete_text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class DetokenizeStream:
    """The text of one token sequence. A pure function of its arguments and the tokens.

    Bytes that can still become a character are held back; bytes that cannot are U+FFFD, as in the
    Unicode standard's recommended practice. Returned characters are final.
    """

    __slots__ = ("_alphabet", "_begin", "_pending", "_size", "_texts")

    def __init__(
        self, alphabet: Alphabet, *, skip_special: bool, prompt_tail: Iterable[int] = ()
    ) -> None:
        self._alphabet = alphabet
        self._texts = alphabet.plain_texts if skip_special else alphabet.texts
        self._size = len(self._texts)
        self._pending = b""
        self._begin = alphabet.drops_space
        for token in prompt_tail:
            self.push(token)

    def push(self, token: int) -> str:
        """Text that becomes final with this token. Ids outside of the vocabulary yield no text."""
        if not 0 <= token < self._size:
            return ""
        text = self._texts[token]
        if text == "":
            return ""
        if text is None or self._pending:
            data = self._pending + self._alphabet.pieces[token]
            text, used = utf_8_decode(data, "replace", False)
            self._pending = data[used:]
        return self._trim(text) if self._begin and text else text

    def flush(self) -> str:
        """End the sequence: an incomplete character becomes U+FFFD."""
        data, self._pending = self._pending, b""
        return data.decode(errors="replace")

    def _trim(self, text: str) -> str:
        self._begin = False
        return text.removeprefix(" ")


def decode(alphabet: Alphabet, tokens: Iterable[int], *, skip_special: bool) -> str:
    """The complete text of a token sequence."""
    stream = DetokenizeStream(alphabet, skip_special=skip_special)
    return "".join(map(stream.push, tokens)) + stream.flush()
