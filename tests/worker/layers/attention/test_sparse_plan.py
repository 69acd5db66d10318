"""Attention to selected KV, in rows of pages and in rows of single tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, AttentionBatch, AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.kernels.page_layout import EVERY
from baton_worker.layers.attention.sparse_plan import (
    BLOCK,
    Chosen,
    Late,
    Plan,
    best,
)

CPU = torch.device("cpu")
CALL = AttentionSpec(3, 1, 10, 0.4, None, torch.float32, CPU, latent=True, value_dim=6, most_keys=5)
ROWS = {
    "all are early": ([2, 1], [0, 4]),
    "all are late": ([2, 1], [5, 40]),
    "one goes from early to late": ([9, 1, 1], [2, 3, 17]),
}


@pytest.mark.row("F04.26")
def test_the_best_scores_are_chosen_and_of_equal_ones_the_earlier() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 9.0], [0.5, -1.0, 0.5, 0.5, -2.0]])
    assert best(scores, torch.tensor([3, 4]), 2).tolist() == [[1, 3], [0, 2]]


def test_many_equal_scores_choose_the_earliest() -> None:
    scores = torch.zeros(3, 4 * BLOCK)
    scores[1] = -0.0
    chosen = best(scores, torch.tensor([100, 9, 255]), 9)
    assert chosen.tolist() == [list(range(9))] * 3


def test_scores_that_are_no_numbers_choose_as_many_keys_and_are_the_last() -> None:
    scores = torch.tensor([[float("nan")] * 6, [1.0, float("nan"), -float("inf"), 7.0, 8.0, 9.0]])
    assert best(scores, torch.tensor([4, 4]), 3).tolist() == [[0, 1, 2], [0, 3, 4]]


def tables(starts: list[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randperm(40, generator=generator)[:20].tolist() for _ in starts]


def batch_of(counts: list[int], starts: list[int], page_size: int = 4) -> AttentionBatch:
    return AttentionBatch.build(counts, starts, tables(starts), page_size, CPU)


def choice(plan: Plan, generator: torch.Generator) -> tuple[Plan, list[torch.Tensor]]:
    """Any five keys for each late token, and their positions."""
    if plan.late is None:
        return plan, []
    at = [torch.randperm(n, generator=generator)[:5].sort().values for n in plan.late.lengths]
    rows = plan.late.slots[plan.late.rows]
    slots = torch.stack([row[some] for row, some in zip(rows, at, strict=True)])
    return replace(plan, chosen=slots.int()), at


@pytest.mark.row("F04.26")
@pytest.mark.parametrize("name", ["cpu", "grouped", "reference"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_late_tokens_attend_to_their_keys_and_early_ones_to_all(
    rows: tuple[list[int], list[int]], name: str
) -> None:
    backend = Chosen(BACKENDS.load(name)())
    if (reason := backend.refuses(CALL)) is not None:
        pytest.skip(reason)
    generator = torch.Generator().manual_seed(1)
    batch = batch_of(*rows)
    query = torch.randn(sum(rows[0]), 3, 10, generator=generator)
    wide = torch.randn(40, 4, 1, 1, 13, generator=generator)
    plan, at = choice(backend.plan(batch, CALL), generator)
    found = backend.forward(plan, query, wide[..., :10])
    late = {} if plan.late is None else dict(zip(plan.late.tokens.tolist(), at, strict=True))
    for token, (row, position) in enumerate(zip(*batch.flat(), strict=True)):
        text = wide[batch.block_table[int(row)].long()].flatten(0, 1)[: position + 1, 0, 0, :10]
        assert (token in late) == (position >= 5)
        keys = text[late[token]] if token in late else text
        weights = (query[token] @ keys.T * 0.4).softmax(-1)
        expected = (weights @ keys[:, :6]).flatten()
        torch.testing.assert_close(found[token], expected, rtol=1e-5, atol=1e-5)


def test_a_step_without_late_tokens_is_planned_as_it_is() -> None:
    batch = batch_of([3, 2], [1, 3])
    plan = Chosen(ReferenceBackend()).plan(batch, CALL)
    assert plan.late is None and plan.early is not None and plan.early[0] is None
    assert plan.early[1].batch is batch


def late_of(counts: list[int], starts: list[int]) -> Late:
    late = Chosen(ReferenceBackend()).plan(batch_of(counts, starts), CALL).late
    assert late is not None
    return late


def test_late_tokens_are_in_the_order_of_their_positions() -> None:
    late = late_of([1, 9, 1], [70, 2, 3])
    assert late.positions.tolist() == [5, 6, 7, 8, 9, 10, 70]
    assert late.tokens.tolist() == [4, 5, 6, 7, 8, 9, 0] and late.lengths[-1] == 71
    assert late.rows.tolist() == [1] * 6 + [0] and late.slots.shape == (2, 2 * BLOCK)
    [table] = tables([0])
    assert late.slots[0, :71].tolist() == [table[n // 4] * 4 + n % 4 for n in range(71)]


def test_parts_have_few_blocks_or_one_token() -> None:
    late = late_of([6, 1, 1], [60, 70, 79])
    assert [(some.start, some.stop, blocks) for some, blocks in late.parts(4)] == [
        (0, 4, 1),
        (4, 6, 2),
        (6, 8, 2),
    ]
    assert [some.stop - some.start for some, _ in late.parts(1)] == [1] * 8


def test_what_is_below_says_what_it_reads_and_nothing_is_captured() -> None:
    backend = Chosen(ReferenceBackend())
    assert backend.layouts == EVERY and backend.capture_blocker is not None
    refused: Any = backend.refuses(replace(CALL, codes=object()))  # type: ignore[arg-type]
    assert "latents" in refused
