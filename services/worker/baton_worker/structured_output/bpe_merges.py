"""Byte-pair merging of short texts, for checkpoints that are one GGUF file.

Two kinds, as `tokenizer.ggml.model` names them: "gpt2" merges the pairs of a list in its order
within words (https://arxiv.org/abs/1508.07909), "llama" the pair whose union has the highest score
(SentencePiece, https://arxiv.org/abs/1808.06226).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from baton.checkpoint.byte_tokens import byte_level
from baton.checkpoint.gguf_header import read_metadata
from baton.errors import ModelError
from baton_worker.structured_output.vocabulary import BYTE, Vocabulary

_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
"""GPT-2's words. Its descendants cut numbers, runs of white space and contractions otherwise: text
of those may be spelled here in a way that its tokenizer would not choose."""

Rank = Callable[[bytes, bytes], float | None]


class Merges:
    """A text as the pieces that merging ends with."""

    def __init__(self, ids: Mapping[bytes, int], rank: Rank, *, words: bool) -> None:
        self._ids, self._rank, self._words = ids, rank, words

    @classmethod
    def read(cls, path: Path, vocabulary: Vocabulary) -> Merges:
        """Of a GGUF file. Raises `ModelError` for a vocabulary of another kind."""
        fields = {k.removeprefix("tokenizer.ggml."): v for k, v in read_metadata(path).items()}
        ids = _ids(vocabulary, fields.get("token_type", ()))
        match fields.get("model"):
            case "gpt2":
                return cls(ids, _listed(fields["merges"]), words=True)
            case "llama":
                return cls(ids, _scored(ids, fields["scores"]), words=False)
            case kind:
                raise ModelError(
                    f"A vocabulary of kind '{kind}' has no merges that are known here."
                )

    def __call__(self, text: str) -> list[int]:
        """Ids of a text. A piece without an id ends them."""
        tokens = list[int]()
        for word in _WORD.findall(text) if self._words else (text,):
            for piece in self._merged(list(self._units(word))):
                if piece not in self._ids:
                    return tokens
                tokens.append(self._ids[piece])
        return tokens

    def _units(self, word: str) -> Iterator[bytes]:
        """The initial pieces of merging: bytes, or characters and the bytes of unknown ones."""
        for character in word:
            data = character.encode()
            is_token = not self._words and data in self._ids
            yield from (data,) if is_token else (bytes([byte]) for byte in data)

    def _merged(self, parts: list[bytes]) -> list[bytes]:
        while len(parts) > 1:
            ranks = [self._rank(*pair) for pair in pairwise(parts)]
            best = min((rank for rank in ranks if rank is not None), default=None)
            if best is None:
                break
            at = ranks.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts


def _ids(vocabulary: Vocabulary, types: Sequence[int]) -> dict[bytes, int]:
    """Ids by piece. A byte that is a character of its own is that."""
    ids: dict[bytes, int] = {}
    for token, piece in enumerate(vocabulary.pieces):
        if piece and (piece not in ids or (types and types[ids[piece]] == BYTE)):
            ids[piece] = token
    return ids


def _listed(merges: Sequence[str]) -> Rank:
    """Of two pieces, the left one may itself begin with a space."""
    cuts = ((merge, merge.index(" ", 1)) for merge in merges)
    ranks = {
        (byte_level(merge[:cut]), byte_level(merge[cut + 1 :])): float(number)
        for number, (merge, cut) in enumerate(cuts)
    }
    return lambda left, right: ranks.get((left, right))


def _scored(ids: Mapping[bytes, int], scores: Any) -> Rank:
    def rank(left: bytes, right: bytes) -> float | None:
        token = ids.get(left + right)
        return None if token is None else -float(scores[token])

    return rank
