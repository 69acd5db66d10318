"""Trees of new tokens: every token sees what it would if its branch had been the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, AttentionBatch
from baton_worker.attention.tree_mask import AHEAD, MOST_TOKENS, TreeMask
from tests.worker.attention.conftest import ON_A_CPU, branches, over_branches, sinks_for

CPU = torch.device("cpu")
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window of one": {"window": 1},
    "window": {"window": 9},
    "chunks": {"chunk": 7},
    "soft cap": {"softcap": 3.0},
    "ALiBi in a window": {"slopes": (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01), "window": 30},
    "sinks": {"sinks": True},
}


def test_bits_and_depths_of_a_tree() -> None:
    trees = TreeMask.build([5, 2, 2], [[-1, 0, 0, 1, 2], None, [-1, -1]], CPU)
    assert trees.ancestors.tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10101, -1, -1, 0b1, 0b10]
    assert trees.depths.tolist() == [0, 1, 1, 2, 2, 0, 1, 0, 0]


def test_where_keys_are_for_who_sees_them() -> None:
    trees = TreeMask.build([2, 3], [None, [-1, 0, 0]], CPU)
    places = trees.places(torch.tensor([2, 3, 4]), start=2, length=6)
    assert places.tolist() == [
        [0, 1, 2, AHEAD, AHEAD, 5],
        [0, 1, 2, 3, AHEAD, 5],
        [0, 1, 2, AHEAD, 3, 5],
    ]


def test_a_tree_may_have_as_many_tokens_as_there_are_bits() -> None:
    chain = list(range(-1, MOST_TOKENS - 1))
    assert TreeMask.build([MOST_TOKENS], [chain], CPU).ancestors[-1] == -1
    with pytest.raises(ValueError, match="at most 64"):
        TreeMask.build([MOST_TOKENS + 1], [[*chain, 0]], CPU)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-2], [-1, 0, 5]], ids=str)
def test_a_token_follows_an_earlier_one(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="which is not before it"):
        TreeMask.build([len(parents)], [parents], CPU)


def test_one_parent_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 tokens for 3 new ones"):
        TreeMask.build([3], [[-1, 0]], CPU)


@pytest.mark.row("F04.13")
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("name", ON_A_CPU)
def test_each_branch_is_attended_as_if_it_were_the_text(
    problem: Any, name: str, features: dict[str, Any]
) -> None:
    """Trees of few and of many tokens, beside a prompt chunk and a decode row."""
    over_branches(BACKENDS.load(name)(), problem, **features)


@pytest.mark.row("F04.13")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_chain_is_ordinary_attention_to_the_last_bit(
    problem: Any, name: str, features: dict[str, Any], dtype: torch.dtype
) -> None:
    counts, backend = (5, 40, 64, 1), BACKENDS.load(name)()
    given = problem([(c, s) for c, s in zip(counts, (30, 0, 250, 9), strict=True)], dtype=dtype,
                    heads=(6, 2), page_size=16)  # fmt: skip
    call = replace(given.call, **features)
    if (reason := backend.refuses(replace(call, tree=True))) is not None:
        pytest.skip(f"{name}: {reason}")
    sinks = sinks_for(given, call)
    plain = backend.forward(backend.plan(given.batch, call), given.query, given.pages, sinks)
    trees = TreeMask.build(counts, [list(range(-1, count - 1)) for count in counts], CPU)
    batch, call = replace(given.batch, trees=trees), replace(call, tree=True)
    ours = backend.forward(backend.plan(batch, call), given.query, given.pages, sinks)
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_layer_that_knows_no_trees_is_given_none(problem: Any, name: str) -> None:
    given, backend = problem([(2, 3)]), BACKENDS.load(name)()
    if (reason := backend.refuses(given.call)) is not None:
        pytest.skip(f"{name}: {reason}")
    batch = replace(given.batch, trees=TreeMask.build([2], [[-1, -1]], CPU))
    with pytest.raises(AssertionError):
        backend.plan(batch, given.call)


def test_a_tokens_bits_do_not_depend_on_its_neighbours(problem: Any) -> None:
    backend = BACKENDS.load("cpu")()
    rows, parents = [(1, 600), (9, 300), (30, 0)], [None, [-1, 0, 0, 1, 1, 2, 2, 3, -1], None]
    given = problem(rows, heads=(6, 2), page_size=16)
    call = replace(given.call, tree=True, window=290)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(reason)

    def attended(chosen: Sequence[int]) -> list[torch.Tensor]:
        counts, starts = zip(*(rows[row] for row in chosen), strict=True)
        table = given.batch.block_table.numpy()[list(chosen)]
        batch = AttentionBatch.build(counts, starts, table, 16, CPU)
        batch = replace(batch, trees=TreeMask.build(counts, [parents[row] for row in chosen], CPU))
        query = torch.cat([given.query.split([1, 9, 30])[row] for row in chosen])
        return list(backend.forward(backend.plan(batch, call), query, given.pages).split(counts))

    together = attended([0, 1, 2])
    for row in range(3):
        assert torch.equal(attended([row])[0], together[row])
    assert torch.equal(attended([2, 1])[1], together[1])


def test_a_branch_follows_its_parents_to_the_root() -> None:
    assert branches([-1, 0, 0, 1, -1]) == [[0], [0, 1], [0, 2], [0, 1, 3], [4]]
