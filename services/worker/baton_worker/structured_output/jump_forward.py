"""Jump-forward decoding: the tokenizer's own spelling of text that a grammar forces.

Of all token sequences that write a text, a tokenizer produces one, and models are trained on that.
Its first token is forced if no allowed token can extend beyond the known text.

The rule is evaluated after every token and depends only on the text that the grammar forces there:
a sequence resumed in the middle of forced text continues with the same tokens.
"""

from __future__ import annotations

import codecs
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from baton.checkpoint.part_folders import text_folder
from baton.errors import ModelError
from baton_worker.structured_output.bpe_merges import Merges
from baton_worker.structured_output.vocabulary import Vocabulary

_MARK = "\x02"
"""Stands before what is spelled, so that it is not taken for the beginning of a text, where some
tokenizers put a space."""
MOST = 64
"""Bytes that are looked at to find the first token."""
_REMEMBERED = 4096


class Encoder(Protocol):
    """A tokenizer."""

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""


def encoder(path: Path, vocabulary: Vocabulary) -> Encoder:
    """The tokenizer of a model directory, or that of a GGUF file if `Merges` supports it.

    Raises `ModelError` for a tokenizer that cannot be built, and for a GGUF file whose vocabulary
    has no merges.
    """
    if path.is_file():
        return Merges.read(path, vocabulary)
    try:
        tokenizer = Tokenizer.from_file(str(text_folder(path) / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"The tokenizer cannot be built: {error}.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


class Spelling:
    """The first token of forced text."""

    def __init__(self, vocabulary: Vocabulary, encode: Encoder) -> None:
        self._pieces, self._encode = vocabulary.pieces, encode
        self._lengths = np.array([len(piece) for piece in vocabulary.pieces])
        self._mark = encode(_MARK)
        self._known: OrderedDict[str, int] = OrderedDict()

    def first(self, text: bytes, allowed: npt.NDArray[np.uint8]) -> int:
        """The first token of a text, or -1 if it depends on the text after it.

        Args:
            text: forced bytes; the last character may be cut off.
            allowed: one bit per token that may come next, the least significant first.
        """
        if text[:1] >= b"\x80" and text[0] & 0xC0 == 0x80:  # In the middle of a character.
            return -1
        decoded, size = codecs.utf_8_decode(text[:MOST], "strict", False)
        bits = np.unpackbits(allowed, count=len(self._lengths), bitorder="little")
        if not decoded or self._lengths[bits > 0].max(initial=0) > size:
            return -1
        token = self._first(decoded)
        return token if token >= 0 and bits[token] else -1

    def _first(self, text: str) -> int:
        token = self._known.get(text)
        if token is None:
            token = self._known[text] = self._spell(text)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return token

    def _spell(self, text: str) -> int:
        """-1 where the tokenizer takes the text for something else, a special token for one."""
        ids = self._encode(_MARK + text)
        spelled = ids[len(self._mark) :]
        if any(token >= len(self._pieces) for token in spelled):
            return -1
        whole = b"".join(self._pieces[token] for token in spelled)
        if ids[: len(self._mark)] != self._mark or whole != text.encode():
            return -1
        return spelled[0]
