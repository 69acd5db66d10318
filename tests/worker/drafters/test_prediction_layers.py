"""Each of several layers of prediction is a position behind the one before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baton_worker.drafters.draft_head_weights import LayerHeadWeights
from baton_worker.drafters.layer_head import LayerHeadProposer
from baton_worker.drafters.prediction_layers import PredictionLayersProposer, mtp_proposer
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import DraftRequest, TargetStep
from tests.support.worker.proposers import MostProbable, context


class StubLayer:
    """Its stream is what it reads and the token that it embeds, both kept; it drafts the number
    behind that token."""

    def __init__(self) -> None:
        self.settings: Any = SimpleNamespace(hidden=1)
        self.runs: list[tuple[list[int], list[int], list[int], list[float]]] = []
        """Starts, tokens, positions, what is read."""

    def read(self, hidden: Tensor) -> Tensor:
        return hidden

    def carried(self, stream: Tensor) -> Tensor:
        return stream

    def __call__(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor, batch: Any, cache: Any
    ) -> Tensor:
        columns = tokens.tolist(), positions.tolist(), hidden.flatten().tolist()
        self.runs.append(([*batch.num_computed], *columns))
        return tokens[:, None].float()

    def logits(self, stream: Tensor) -> Tensor:
        return -(torch.arange(400.0) - stream - 1).abs()


def step(start: int, count: int) -> TargetStep:
    """Of a sequence whose tokens are their positions; the target's states are 100 and more."""
    at = np.arange(start, start + count)
    columns = np.array([0]), np.array([start]), np.array([count])
    tables: Any = SimpleNamespace(tables=np.zeros((1, 8, 64), np.int32), page_size=4)
    nothing: Any = None
    states = torch.from_numpy(100.0 + at)[:, None].float()
    return TargetStep(*columns, at + 1, at, states, tables, nothing)


@pytest.mark.row("F08.10")
def test_layers_follow_one_another() -> None:
    layers: Any = (StubLayer(), StubLayer(), StubLayer())
    target = SimpleNamespace(drafter=LayerHeadWeights(0, layers[0], layers[1:]))
    proposer = mtp_proposer(context(SpeculativeConfig(3), target))
    assert isinstance(proposer, PredictionLayersProposer)
    proposer.observe(step(0, 3))
    proposer.observe(step(3, 2))
    assert [layer.runs for layer in layers] == [
        [([0], [1, 2, 3], [0, 1, 2], [100, 101, 102]), ([3], [4, 5], [3, 4], [103, 104])],
        [([0], [2, 3], [0, 1], [1, 2]), ([2], [4, 5], [2, 3], [3, 4])],
        [([0], [3], [0], [2]), ([1], [4, 5], [1, 2], [3, 4])],
    ]
    for layer in layers:
        layer.runs.clear()
    request = DraftRequest(0, np.arange(6, dtype=np.int32), 5)
    [drafts] = proposer.propose([request], MostProbable())
    assert drafts.tolist() == [6, 7, 8], "as many as there are layers"
    # Position 4 for the second draft; 3, which lacked a token, and 4 for the third.
    assert layers[1].runs == [([4], [6], [4], [5])]
    assert layers[2].runs == [([3], [6, 7], [3, 4], [5, 6])]
    # A sequence that goes on elsewhere begins anew with what the layers can know.
    for layer in layers:
        layer.runs.clear()
    proposer.observe(step(20, 1))
    assert [len(layer.runs) for layer in layers] == [1, 0, 0]
    proposer.observe(step(21, 1))
    assert layers[1].runs == [([20], [22], [20], [21])] and not layers[2].runs
    single = SimpleNamespace(drafter=LayerHeadWeights(0, layers[0]))
    assert type(mtp_proposer(context(SpeculativeConfig(1), single))) is LayerHeadProposer


def test_single_tokens_wait_for_their_page_or_for_drafts() -> None:
    layer: Any = StubLayer()
    target = SimpleNamespace(drafter=LayerHeadWeights(0, layer))
    proposer = mtp_proposer(context(SpeculativeConfig(1), target))
    for start, count in ((0, 2), (2, 1), (3, 1), (4, 1)):
        proposer.observe(step(start, count))
    assert [run[:2] for run in layer.runs] == [([0], [1, 2]), ([2], [3, 4])]
    layer.runs.clear()
    proposer.observe(step(5, 1))
    tokens = np.arange(7, dtype=np.int32)
    assert proposer.costs is not None and not proposer.costs.seconds(np.array(1))
    for _ in range(3):
        [drafts] = proposer.propose([DraftRequest(0, tokens, 1)], MostProbable())
        assert drafts.tolist() == [7]
    assert [run[:2] for run in layer.runs] == [([4], [5, 6])]
    assert proposer.costs.seconds(np.array(1)) > 0, "what a pass takes is known"
    # A sequence that has gone, and one that goes on elsewhere, leave nothing behind.
    layer.runs.clear()
    proposer.observe(step(6, 1))
    proposer.observe(step(20, 1))
    proposer.observe(step(21, 2))
    assert [run[:2] for run in layer.runs] == [([20], [21, 22, 23])]
    proposer.observe(step(24, 1))
    proposer.release(0)
    proposer.propose([DraftRequest(0, np.arange(26, dtype=np.int32), 1)], MostProbable())
    assert len(layer.runs) == 1
