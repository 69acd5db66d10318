"""Columns of log-probabilities against float64 log-softmax and sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.sampling import concatenate, describe
from tests.fakes.scheduler_planner import entries

LOGITS = torch.randn(5, 97, generator=torch.Generator().manual_seed(3)) * 4
TOKENS = np.array([3, 96, 0, 41, 41], np.int32)
COUNTS = np.array([0, 3, 1, 20, 97])


@pytest.mark.row("F09.10")
def test_equals_definition() -> None:
    described = list(entries(describe(LOGITS, TOKENS, COUNTS, np.array([0, 2, 3, 5, 9]))))
    assert [row for row, *_ in described] == [0, 2, 3, 5, 9]
    values = LOGITS.double().log_softmax(1)
    for i, (_, chosen, rank, top) in enumerate(described):
        order = values[i].argsort(descending=True).tolist()
        assert chosen == pytest.approx(values[i, TOKENS[i]].item(), abs=1e-5)
        assert order[rank - 1] == TOKENS[i]
        assert [token for token, _ in top] == order[: COUNTS[i]]
        expected = [values[i, token].item() for token in order[: COUNTS[i]]]
        assert [value for _, value in top] == pytest.approx(expected, abs=1e-5)


def test_equal_tokens_share_the_better_rank() -> None:
    described = describe(torch.zeros(1, 4), np.array([2], np.int32), np.array([0]), np.array([0]))
    assert next(iter(entries(described)))[2] == 1


def test_more_alternatives_than_tokens() -> None:
    described = describe(torch.zeros(1, 4), np.array([2], np.int32), np.array([9]), np.array([0]))
    assert len(next(iter(entries(described)))[3]) == 4


def test_parts_join() -> None:
    numbers = np.arange(5)
    parts = [
        describe(LOGITS[part], TOKENS[part], COUNTS[part], numbers[part])
        for part in (slice(0, 2), slice(2, 5))
    ]
    whole = describe(LOGITS, TOKENS, COUNTS, numbers)
    joined, expected = list(entries(concatenate(parts))), list(entries(whole))
    for (row, chosen, rank, top), (row2, chosen2, rank2, top2) in zip(
        joined, expected, strict=True
    ):
        assert (row, rank, [t for t, _ in top]) == (row2, rank2, [t for t, _ in top2])
        assert chosen == pytest.approx(chosen2, abs=1e-6)
