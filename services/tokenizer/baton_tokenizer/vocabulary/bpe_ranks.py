"""Byte-level BPE vocabularies defined by token ranks, as in tiktoken.

tiktoken merges the pair whose union has the lowest rank, leftmost first. A tokenizer.json lists
pairs instead: all splits of a token into two tokens, in the order of ranks, give the same merges in
the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.checkpoint.byte_tokens import ALPHABET
from baton_tokenizer.vocabulary.pretokenizers import byte_level, pre_tokenizer

_LETTERS = {byte: letter for letter, byte in ALPHABET.items()}


def ranked_spec(
    ranks: Mapping[bytes, int], patterns: Sequence[str], *, offset: int = 0, compose: bool = False
) -> dict[str, Any]:
    """A tokenizer.json of these ranks, without added tokens.

    Args:
        ranks: bytes of a token -> its rank.
        patterns: regular expressions that split text into words before merging.
        offset: added to a rank to get its id.
        compose: whether to normalize text to Unicode NFC first.
    """
    return {
        "version": "1.0",
        "normalizer": {"type": "NFC"} if compose else None,
        "pre_tokenizer": pre_tokenizer(tuple(patterns)),
        "post_processor": None,
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "vocab": {letters(token): rank + offset for token, rank in ranks.items()},
            "merges": list(_merges(ranks)),
            "ignore_merges": True,
        },
    }


def letters(token: bytes) -> str:
    """Bytes in the GPT-2 byte alphabet, one printable character each."""
    return "".join(_LETTERS[byte] for byte in token)


def add_tokens(spec: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    """Add `added_tokens` to a tokenizer.json; their ids may leave gaps.

    The library renumbers added tokens that are not in the model's vocabulary, so they are added
    there.
    """
    vocab = spec["model"]["vocab"] | {token["content"]: token["id"] for token in added}
    return {**spec, "model": {**spec["model"], "vocab": vocab}, "added_tokens": added}


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[str, str]]:
    for token in sorted(ranks, key=ranks.__getitem__):
        # Prefer a longer left side: merging from the left produces it.
        for cut in range(len(token) - 1, 0, -1):
            if token[:cut] in ranks and token[cut:] in ranks:
                yield letters(token[:cut]), letters(token[cut:])
