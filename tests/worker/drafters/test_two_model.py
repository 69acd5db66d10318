"""A head apart from the target's step and pages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_worker.drafters.draft_head_weights import LayerHeadWeights
from baton_worker.drafters.two_model import TwoModelProposer
from baton_worker.spec import Attention, Decoder, Head, Norm
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import DraftRequest, TargetStep
from tests.support.worker.proposers import MostProbable, context

LAYER = (Attention(num_heads=1, num_kv_heads=1, head_dim=4, scale=1.0, rope=None), None)


class StubHead:
    """Its stream is the number of the token that it embeds; it drafts the next number."""

    dtype = torch.float32

    def __init__(self) -> None:
        decoder = Decoder(1, 400, (LAYER,), Norm(0.0), Head())
        self.settings: Any = SimpleNamespace(decoder=decoder, hidden=1)
        self.runs: list[tuple[list[int], list[int], list[int], list[int]]] = []
        """Starts, counts, tokens, positions."""

    def read(self, hidden: Tensor) -> Tensor:
        return hidden

    def carried(self, stream: Tensor) -> Tensor:
        return stream

    def __call__(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, batch: Any, cache: Any
    ) -> Tensor:
        columns = tokens.tolist(), positions.tolist()
        self.runs.append(([*batch.num_computed], [*batch.query_lens], *columns))
        return tokens[:, None].float()

    def logits(self, stream: Tensor) -> Tensor:
        return -(torch.arange(400.0) - stream - 1).abs()


def step(slot: int, start: int, count: int, head: Any = None) -> TargetStep:
    """Of a sequence whose tokens are their positions."""
    at = np.arange(start, start + count)
    columns = np.array([slot]), np.array([start]), np.array([count])
    nothing: Any = None
    return TargetStep(*columns, at + 1, at, torch.zeros(count, 1), nothing, nothing)


def asked(slot: int, length: int, most: int) -> DraftRequest:
    return DraftRequest(slot, np.arange(length, dtype=np.int32), most)


@pytest.mark.row("F08.07")
def test_a_head_begins_where_its_worker_does() -> None:
    head: Any = StubHead()
    target = SimpleNamespace(drafter=LayerHeadWeights(0, head))
    proposer = TwoModelProposer(context(SpeculativeConfig(4), target, num_pages=4))
    proposer.observe(step(0, 8, 3))  # Eight tokens are the prefix cache's.
    proposer.observe(step(0, 11, 1))
    assert not head.runs, "it runs when drafts are wanted"
    [drafts] = proposer.propose([asked(0, 13, 3)], MostProbable())
    assert drafts.tolist() == [13, 14, 15]
    assert head.runs == [
        ([0], [4], [9, 10, 11, 12], [8, 9, 10, 11]),
        ([4], [1], [13], [12]),
        ([5], [1], [14], [13]),
    ]
    # It has not seen the tokens 12 and 13, and begins anew.
    head.runs.clear()
    proposer.observe(step(0, 14, 1))
    assert proposer.propose([asked(0, 15, 1)], MostProbable())[0].tolist() == []
    assert proposer.propose([asked(0, 16, 1)], MostProbable())[0].tolist() == [16]
    assert head.runs == [([0], [1], [15], [14])]
    # Of four pages of four tokens another sequence leaves one.
    proposer.observe(step(1, 0, 9))
    assert proposer.propose([asked(1, 10, 3)], MostProbable())[0].tolist() == [10, 11, 12]
    proposer.observe(step(2, 0, 5))
    assert proposer.propose([asked(2, 6, 1)], MostProbable())[0].tolist() == []
    proposer.release(1)
    proposer.observe(step(2, 5, 1))
    assert proposer.propose([asked(2, 7, 1)], MostProbable())[0].tolist() == [7]
