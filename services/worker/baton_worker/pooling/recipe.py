"""Pooling recipes, as pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from baton.protocol import PooledTask, PoolingInfo, Reach
from baton_worker.spec import Dense

Take = Literal["last", "first", "mean", "max", "steps"]
"""Pooled states: the last token's, the first's, the mean or maximum over all, or those at step
tokens."""
Finish = Literal["identity", "normalize", "sigmoid", "softmax"]
"""The final function, skipped for a request for raw scores."""


@dataclass(frozen=True, slots=True)
class PoolingRecipe:
    """take -> head -> subtract the logit bias -> truncate to the first dimensions -> finish."""

    task: PooledTask
    take: Take
    finish: Finish
    width: int
    """Size of each output vector."""
    head: tuple[Dense, ...] = ()
    logit_bias: float = 0.0
    """Subtracted from the output of the head, raw scores included, as in vLLM."""
    step_id: int = -1
    """Id of the step token."""
    whole: bool = False
    """Attention is bidirectional, so a text runs in one step."""
    labels: tuple[str, ...] = ()
    pairs: bool = False
    """The model scores two texts as one sequence."""
    matryoshka: bool = False
    sizes: tuple[int, ...] = ()
    """Dimensions of a matryoshka embedding; empty means any."""
    mark: bytes = b""
    """Tokens up to the end of this text are an instruction and are not pooled."""
    pieces: tuple[bytes, ...] = ()
    """Bytes of each token, if there is a `mark`."""
    max_length: int = 0
    """Maximum text length of the checkpoint in tokens; 0 means that of the model."""

    @property
    def reach(self) -> Reach:
        """The states that a text needs, as the scheduler's enum."""
        return "whole" if self.whole else "last" if self.take == "last" else "every"

    def skipped(self, tokens: Sequence[int]) -> int:
        """Number of leading instruction tokens; 0 if nothing follows the instruction."""
        if not self.mark:
            return 0
        written = [self.pieces[token] for token in tokens]
        end = b"".join(written).find(self.mark) + len(self.mark)
        if end < len(self.mark):
            return 0
        count = next(i for i, size in enumerate(accumulate(map(len, written)), 1) if size >= end)
        return count if count < len(tokens) else 0

    def info(self, max_length: int, *, generates: bool) -> PoolingInfo:
        """Pooling capabilities for the other services, for texts of at most `max_length` tokens."""
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
