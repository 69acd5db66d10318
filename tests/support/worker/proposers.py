"""Proposers whose guesses are known to be good or bad, and what proposers are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import (
    Column,
    DraftRequest,
    DraftSampler,
    Proposer,
    ProposerContext,
    Tokens,
)


def context(config: SpeculativeConfig, target: Any = None, **sizes: int) -> ProposerContext:
    """Of a small engine on the CPU."""
    small = {"max_num_seqs": 8, "max_model_len": 256, "page_size": 4, "num_pages": 400}
    return ProposerContext(
        config, target, BuildContext(torch.device("cpu"), torch.float32), **small | sizes
    )


class MostProbable:
    """A `DraftSampler` of requests without parameters."""

    def sample(self, logits: Tensor, slots: Column) -> Tokens:
        return logits.argmax(1).numpy().astype(np.int32)


class HalfRight(Proposer):
    """Knows whole sequences, prompt and log, and goes on as they do; but about every third token
    is another one. What it has never seen it continues with noise."""

    def __init__(self, texts: Sequence[Sequence[int]] = ()) -> None:
        self.texts = [np.array(text, np.int32) for text in texts]
        self._random = np.random.default_rng(1)
        self.released = 0

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        return [self._drafts(request.tokens, request.most) for request in requests]

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        self.released += 1

    def _drafts(self, tokens: Tokens, most: int) -> Tokens:
        drafts = self._random.integers(2, 300, most).astype(np.int32)
        for text in self.texts:
            if len(text) > len(tokens) and (text[: len(tokens)] == tokens).all():
                known = text[len(tokens) : len(tokens) + most]
                right = self._random.random(len(known)) < 0.7
                drafts[: len(known)][right] = known[right]
        return drafts
