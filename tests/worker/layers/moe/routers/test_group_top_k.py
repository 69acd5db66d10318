"""Every group of experts gets as many tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton.errors import ModelError
from baton_worker.layers.moe.routers.group_top_k import each_group
from baton_worker.spec import Router

SETTINGS = Router(8, 4, norm=1.0, num_groups=2, kind="each_group")


def test_the_best_of_each_group_are_taken() -> None:
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    experts, weights = each_group(logits, SETTINGS, None)
    for row, chosen, shares in zip(logits.softmax(-1).tolist(), experts, weights, strict=True):
        expected = [
            expert
            for group in (range(4), range(4, 8))
            for expert in sorted(group, key=lambda e: -row[e])[:2]
        ]
        assert chosen.tolist() == expected
        total = sum(row[expert] for expert in expected)
        assert shares.tolist() == pytest.approx([row[e] / total for e in expected], abs=1e-6)


def test_a_correction_has_a_say_in_the_choice_alone() -> None:
    logits, correction = torch.zeros(1, 8), torch.tensor([0.0, 0, 0, 9, 9, 0, 9, 0])
    experts, weights = each_group(logits, SETTINGS, correction)
    assert experts.tolist() == [[3, 0, 4, 6]]
    assert weights.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("changes", [{"num_groups": 3}, {"top_k": 3}])
def test_what_cannot_be_dealt_out_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ModelError, match="cannot be dealt out to"):
        each_group(torch.zeros(1, 8), replace(SETTINGS, **changes), None)
