"""Groups tokens into words like Whisper (https://github.com/openai/whisper, whisper/tokenizer.py
and timing.py)."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages without spaces between words: each character is a word."""
_PREPENDED = "\"'“¡¿([{-"
"""Punctuation that belongs to the word after it."""
_APPENDED = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before it."""


class WordTokens(NamedTuple):
    """A word and its tokens."""

    text: str
    first: int
    """Number of its first token."""
    last: int

    def then(self, other: WordTokens) -> WordTokens:
        """Both as one word."""
        return WordTokens(self.text + other.text, self.first, other.last)


def split_words(pieces: Sequence[bytes], language: str) -> list[WordTokens]:
    """Return the words of consecutive tokens, including the surrounding white space. The joined
    texts of the tokens are UTF-8."""
    parts = _characters(pieces)
    words = list(parts if language in _UNSPACED else _spaced(parts))
    return _with_closing(_with_opening(words))


def _characters(pieces: Sequence[bytes]) -> Iterator[WordTokens]:
    """Yield the shortest runs of tokens that are complete characters; invalid bytes count as
    complete."""
    data = b"".join(pieces)
    inside, run, end = _inner_places(data), b"", 0
    first = 0
    for number, piece in enumerate(pieces):
        run, end = run + piece, end + len(piece)
        if end not in inside:
            yield WordTokens(run.decode("utf-8", "replace"), first, number)
            run, first = b"", number + 1


def _inner_places(data: bytes) -> set[int]:
    """Whether a character of UTF-8 is incomplete at the end."""
    places, end = set[int](), 0
    for character in data.decode("utf-8", "surrogateescape"):
        length = len(character.encode("utf-8", "surrogateescape"))
        places.update(range(end + 1, end + length))
        end += length
    return places


def _spaced(parts: Iterator[WordTokens]) -> Iterator[WordTokens]:
    """Yield the words: each begins at a space or at punctuation."""
    word: WordTokens | None = None
    for part in parts:
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation
        if word is not None and begins:
            yield word
        word = part if word is None or begins else word.then(part)
    if word is not None:
        yield word


def _with_opening(words: list[WordTokens]) -> list[WordTokens]:
    """Merge punctuation into the word after it."""
    merged = words[-1:]
    for word in reversed(words[:-1]):
        if word.text.startswith(" ") and word.text.strip() in _PREPENDED:
            merged[-1] = word.then(merged[-1])
        else:
            merged.append(word)
    return merged[::-1]


def _with_closing(words: list[WordTokens]) -> list[WordTokens]:
    """Merge punctuation into the word before it."""
    merged = words[:1]
    for word in words[1:]:
        if word.text in _APPENDED and not merged[-1].text.endswith(" "):
            merged[-1] = merged[-1].then(word)
        else:
            merged.append(word)
    return merged
