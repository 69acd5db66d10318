"""Config helpers shared by mixture-of-experts families."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from baton_worker.models.families import moe_common


@pytest.mark.parametrize("word", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_every_word_for_the_number_of_experts(word: str) -> None:
    c = SimpleNamespace(**{word: 5}, num_experts_per_tok=2, norm_topk_prob=True)
    routing = moe_common.router(c)
    assert (routing.num_experts, routing.top_k, routing.norm) == (5, 2, 1.0)


def test_draft_layers_may_stay_unread() -> None:
    c = SimpleNamespace(num_hidden_layers=4, num_nextn_predict_layers=2)
    assert moe_common.draft_layers(c) == ("model.layers.4.", "model.layers.5.")
