"""Steps of a decoder: what its model is given, and whose logits are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.media_embeddings import MediaEmbeddings
from tests.support.worker.plans import batch, entering, plan


class Echo:
    """Its hidden states are its tokens, its logits its hidden states."""

    def __init__(self) -> None:
        self.asked: list[Tensor] = []
        self.attention: AttentionBatch | None = None
        self.positions = torch.empty(0)
        self.media: MediaEmbeddings | None = None

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: Any,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        self.attention, self.positions, self.media = batch, positions, media
        return tokens[:, None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        self.asked.append(hidden)
        return hidden


def stepped() -> tuple[Echo, CausalForward, Any]:
    new = (entering(1, [1] * 7, computed=4), entering(0, [2, 3, 4]))
    inputs = batch().prepare(
        plan(new_sequences=new, pages={1: [6, 1], 0: [2]}, run=[(1, 4, 3, 1), (0, 0, 3, 1)])
    )
    echo: Any = Echo()
    no_cache: Any = None
    return echo, CausalForward(echo, no_cache, torch.device("cpu")), inputs


def test_the_model_is_given_each_row_in_its_pages() -> None:
    echo, forward, inputs = stepped()
    assert forward(inputs).flatten().tolist() == [1, 1, 1, 2, 3, 4]
    assert echo.attention is not None and echo.positions.tolist() == [4, 5, 6, 0, 1, 2]
    assert echo.attention.slot_mapping.tolist() == [4, 5, 6, 8, 9, 10]
    assert echo.attention.seq_lens.tolist() == [7, 3]


def test_tokens_may_have_several_positions_each() -> None:
    echo, forward, inputs = stepped()
    forward(replace(inputs, positions=np.stack([inputs.positions] * 3)))
    assert echo.positions.shape == (3, 6)


def test_logits_of_chosen_states_several_of_a_row_among_them() -> None:
    _, forward, inputs = stepped()
    hidden = forward(inputs)
    assert forward.logits(hidden, inputs.logits.indices).tolist() == [[1], [4]]
    assert forward.logits(hidden, np.array([2, 3, 5])).tolist() == [[1], [2], [4]]


def test_states_are_not_copied_where_the_logits_of_all_are_wanted() -> None:
    """Logits of a replayed step are there already, for the states that it has handed out."""
    echo, forward, inputs = stepped()
    hidden = forward(inputs)
    forward.logits(hidden, np.arange(6))
    forward.logits(hidden)
    assert echo.asked[0] is hidden and echo.asked[1] is hidden


def test_embeddings_in_the_place_of_tokens_reach_the_model() -> None:
    echo, forward, inputs = stepped()
    media = MediaEmbeddings(torch.tensor([1, 2]), torch.zeros(2, 4))
    forward(replace(inputs, embeddings=media))
    assert echo.media is media
