"""An index of token sequences by their bigrams: where a text has been, and what followed.

It answers what a suffix tree with counts answers (SuffixDecoding, Oliaro et al. 2024,
arXiv:2411.04975), the longest match of the end of a text and the frequencies of what comes behind
it, at the price of a dictionary entry per token.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque

import numpy as np
import numpy.typing as npt

from baton_worker.speculative.lookup import common_suffix

Tokens = npt.NDArray[np.int32]
_MOST_PLACES = 64
"""Latest places of a bigram that are remembered."""
_MOST_TOKENS = 1 << 20
"""Tokens of texts that are kept."""
_SWEPT = 1 << 16
"""Tokens of forgotten texts whose places are dropped together."""


class SuffixIndex:
    """Texts that grow at their ends and are forgotten as a whole, the oldest first.

    Args:
        depth: longest match that is looked for.
        most: texts that are kept beside those that still grow.
    """

    def __init__(self, depth: int, most: int) -> None:
        self._depth, self._most = depth, most
        self._texts: dict[int, Tokens] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        self._places: defaultdict[int, deque[tuple[int, int]]] = defaultdict(
            lambda: deque(maxlen=_MOST_PLACES)
        )
        self._indexed: dict[int, int] = {}
        self._next = self._kept_tokens = self._forgotten = 0

    def __len__(self) -> int:
        """Texts that are held."""
        return len(self._texts)

    def begin(self) -> int:
        """A new, empty text; returns its number."""
        self._next += 1
        self._texts[self._next], self._indexed[self._next] = np.zeros(0, np.int32), 1
        return self._next

    def extend(self, text: int, tokens: Tokens) -> None:
        """A text is now these tokens, which begin with those that it was."""
        self._texts[text] = tokens
        first = self._indexed[text]
        if len(tokens) > first:
            window = tokens[first - 1 :].astype(np.int64)
            for end, pair in enumerate((window[:-1] << 32 | window[1:]).tolist(), start=first + 1):
                self._places[pair].append((text, end))
            self._indexed[text] = len(tokens)

    def end(self, text: int) -> None:
        """A text grows no more."""
        self._texts[text] = self._texts[text].copy()
        self._done[text] = None
        self._kept_tokens += len(self._texts[text])
        while len(self._done) > self._most or self._kept_tokens > _MOST_TOKENS:
            self._forget(self._done.popitem(last=False)[0])

    def _forget(self, text: int) -> None:
        """Places that name it are skipped, and dropped when there are many."""
        number = len(self._texts.pop(text))
        del self._indexed[text]
        self._kept_tokens -= number
        self._forgotten += number
        if self._forgotten > _SWEPT:
            self._sweep()

    def _sweep(self) -> None:
        self._forgotten = 0
        for pair, places in list(self._places.items()):
            valid = [place for place in places if place[0] in self._texts]
            if valid:
                self._places[pair] = deque(valid, maxlen=_MOST_PLACES)
            else:
                del self._places[pair]

    def matches(self, tokens: Tokens) -> tuple[int, list[Tokens]]:
        """Length of the longest match of the end of these tokens in any text, and what follows each
        place that matches as long; (0, []) if not even two tokens do."""
        if len(tokens) < 2:
            return 0, []
        places = self._places.get(int(tokens[-2]) << 32 | int(tokens[-1]), ())
        # Behind the very end of a text there is nothing yet.
        texts = [
            (self._texts[text], end)
            for text, end in places
            if text in self._texts and end < len(self._texts[text])
        ]
        lengths = [common_suffix(text[:end], tokens, self._depth) for text, end in texts]
        best = max(lengths, default=0)
        return best, [
            text[end:] for (text, end), length in zip(texts, lengths, strict=True) if length == best
        ]
