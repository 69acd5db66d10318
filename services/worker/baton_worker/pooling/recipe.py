"""What is made of the hidden states of a text, as pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from baton.protocol import PooledTask, PoolingInfo, Reach
from baton_worker.spec import Dense

Take = Literal["last", "first", "mean", "max", "steps"]
"""Which states count: the last token's, the first's, the mean or the maximum over all, or those of
the tokens that end a step."""
Finish = Literal["identity", "normalize", "sigmoid", "softmax"]
"""The last thing that is done to the numbers, unless a client wants them raw."""


@dataclass(frozen=True, slots=True)
class PoolingRecipe:
    """take -> head -> the first dimensions -> finish."""

    task: PooledTask
    take: Take
    finish: Finish
    width: int
    """Numbers that come out, per vector."""
    head: tuple[Dense, ...] = ()
    step_id: int = -1
    """The token that ends a step."""
    whole: bool = False
    """Attention looks both ways, so a text is run in one step."""
    labels: tuple[str, ...] = ()
    pairs: bool = False
    """The model was trained to judge two texts as one sequence."""
    matryoshka: bool = False
    sizes: tuple[int, ...] = ()
    """Sizes that a matryoshka vector was trained for; empty means any."""
    mark: bytes = b""
    """Tokens up to the end of this text are an instruction: their states do not count."""
    pieces: tuple[bytes, ...] = ()
    """What each token writes, where there is a mark to be found."""
    max_length: int = 0
    """Longest text in tokens that the checkpoint asks for; 0 means that of the model."""

    @property
    def reach(self) -> Reach:
        """Which states a text needs, in the scheduler's words."""
        return "whole" if self.whole else "last" if self.take == "last" else "every"

    def skipped(self, tokens: Sequence[int]) -> int:
        """How many of a text's first tokens are an instruction; 0 when nothing stands behind it."""
        if not self.mark:
            return 0
        written = [self.pieces[token] for token in tokens]
        end = b"".join(written).find(self.mark) + len(self.mark)
        if end < len(self.mark):
            return 0
        count = next(i for i, size in enumerate(accumulate(map(len, written)), 1) if size >= end)
        return count if count < len(tokens) else 0

    def info(self, max_length: int, *, generates: bool) -> PoolingInfo:
        """What the rest of the system is told, for texts of at most `max_length` tokens."""
        return PoolingInfo(
            task=self.task,
            width=self.width,
            reach=self.reach,
            max_model_len=min(max_length, self.max_length or max_length),
            labels=self.labels,
            matryoshka=self.matryoshka,
            sizes=self.sizes,
            pairs=self.pairs,
            generates=generates,
            steps=self.take == "steps",
        )
