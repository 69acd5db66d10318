"""Encodes special tokens in client text as plain text.

A client may write "<|im_end|>" in a message. In the prompt this must stay text: encoded as the
token, it would let the client end its turn and forge a system message. So every special token has a
second, secret spelling (a random prefix, new in each process), and a second encoder recognises only
that spelling. If a prompt contains imitations, the template's own tokens are respelled before
encoding.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from baton_tokenizer.vocabulary.tokenizer_json import compile_spec

_PRIVATE = range(0xF0000, 0xFFFFE)
"""Plane 15, private use: no normalizer touches it."""


def nonce() -> str:
    """Four random private-use characters: 64 bits that a client cannot guess."""
    return "".join(chr(secrets.choice(_PRIVATE)) for _ in range(4))


class SpecialTokens:
    """Special tokens of a vocabulary: finding them in text, and encoding that text."""

    def __init__(self, spec: Mapping[str, Any], specials: Collection[str]) -> None:
        # A token of one character cannot be distinguished from that character, so it is not
        # protected.
        self._specials = frozenset(s for s in specials if len(s) > 1)
        self._prefix = nonce()
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._beginnings = frozenset(s[:k] for s in self._specials for k in range(1, len(s)))
        self._longest = max(map(len, self._specials), default=0)
        self.tokenizer = compile_spec(_respell(spec, self._specials, self._prefix))
        """Encoder that treats the plain spelling of a special token as ordinary text."""

    def mentions(self, text: str) -> Iterator[int]:
        """Yield the positions of special tokens in `text`, overlapping ones included."""
        match = self._pattern.search(text)
        while match is not None:
            yield match.start()
            match = self._pattern.search(text, match.start() + 1)

    def guard(self, text: str, mark: str) -> str:
        """Insert `mark` into every special token of a client's text.

        The mark is inserted after the first character of each special token, and of a possible
        beginning of one at the end of the text, which the client's next text could complete. So the
        rendered prompt contains no special token written by a client, wherever a template
        truncates.
        """
        cuts = [start + 1 for start in self.mentions(text)]
        end = len(text.rstrip())
        tails = (text[end - size : end] for size in range(1, min(end, self._longest) + 1))
        if any(tail in self._beginnings for tail in tails):
            cuts.append(end)
        if not cuts:
            return text
        edges = [0, *sorted(set(cuts)), len(text)]
        return mark.join(text[a:b] for a, b in pairwise(edges))

    def respell(self, text: str, marks: Collection[int]) -> str | None:
        """Give the special tokens without a mark their secret spelling.

        `text` is a rendered prompt without its marks, `marks` are their positions. None if no mark
        interrupts a token: then the prompt is encoded unchanged.
        """
        parts, last, broken = [], 0, False
        for match in self._pattern.finditer(text):
            start, end = match.span()
            if any(position in marks for position in range(start + 1, end)):
                broken = True
            else:
                parts += [text[last:start], self._prefix]
                last = start
        return "".join([*parts, text[last:]]) if broken else None


def _respell(spec: Mapping[str, Any], specials: Collection[str], prefix: str) -> dict[str, Any]:
    """A tokenizer.json in which the special tokens have their secret spelling."""
    names = {special: prefix + special for special in specials}
    model = dict(spec["model"])
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    elif "vocab" in model:  # Unigram: pairs of token and score
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [m for m in model["merges"] if not _makes(m, names)]
    added = [t | {"content": names.get(t["content"], t["content"])} for t in spec["added_tokens"]]
    return {**spec, "model": model, "added_tokens": added}


def _makes(merge: str | list[str], names: Mapping[str, str]) -> bool:
    """True if a merge produces or uses a special token."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
