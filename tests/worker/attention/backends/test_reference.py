"""The reference against torch's own attention, one row at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton_worker.attention.backends.reference import ReferenceBackend, visible

CPU = torch.device("cpu")


@pytest.mark.parametrize("start", [0, 5])
def test_one_row_equals_torch_attention(problem: Any, start: int) -> None:
    given = problem([(6, start)])
    backend = ReferenceBackend()
    assert backend.refuses(given.call) is None
    ours = backend.forward(backend.plan(given.batch, given.call), given.query, given.pages)
    history = given.pages[given.batch.block_table[0]].flatten(0, 1)[: start + 6]
    query, key, value = (x.transpose(0, 1) for x in (given.query, history[:, 0], history[:, 1]))
    mask = visible(torch.arange(start, start + 6), torch.arange(start + 6), given.call)
    expected = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    torch.testing.assert_close(ours, expected.transpose(0, 1).flatten(1))


def test_visibility_is_causal_and_counts_the_token_itself_in_the_window(problem: Any) -> None:
    query, key, call = torch.tensor([1, 2]), torch.arange(3), problem([(1, 1)]).call
    assert visible(query, key, call).int().tolist() == [[1, 1, 0], [1, 1, 1]]
    assert visible(query, key, replace(call, window=2)).int().tolist() == [[1, 1, 0], [0, 1, 1]]
    assert visible(query, key, replace(call, chunk=2)).int().tolist() == [[1, 1, 0], [0, 0, 1]]


def test_scores_are_bent_then_sloped_by_distance(problem: Any) -> None:
    """Two heads, three tokens, written out."""
    given = problem([(3, 0)], heads=(2, 1))
    call = replace(given.call, softcap=0.7, slopes=(0.5, 0.25))
    backend = ReferenceBackend()
    ours = backend.forward(backend.plan(given.batch, call), given.query, given.pages)
    key, value = given.pages[given.batch.block_table[0]].flatten(0, 1)[:3, :, 0].unbind(1)
    for token in range(3):
        for head, slope in enumerate((0.5, 0.25)):
            raw = torch.stack([given.query[token, head] @ key[j] for j in range(token + 1)])
            bent = 0.7 * torch.tanh(raw * call.scale / 0.7)
            behind = torch.tensor([float(j - token) for j in range(token + 1)])
            weights = (bent + slope * behind).softmax(0)
            expected = weights @ value[: token + 1]
            torch.testing.assert_close(ours[token].view(2, -1)[head], expected)
