"""Attention over parts of the KV, merged: equal to attention over all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, AttentionBatch
from baton_worker.attention.lse_merge import Partial, merge
from tests.worker.attention.conftest import ON_A_CPU, in_parts

CPU = torch.device("cpu")
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 70},
    "chunks": {"chunk": 50},
    "soft cap": {"softcap": 3.0},
    "ALiBi": {"slopes": (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01)},
    "sinks": {"sinks": True},
    "sinks of each token": {"token_sinks": True},
    "narrow values": {"value_dim": 5},
}


@pytest.mark.row("F04.28")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("name", ON_A_CPU)
def test_parts_of_the_keys_merge_to_the_whole(
    problem: Any, name: str, features: dict[str, Any], dtype: torch.dtype
) -> None:
    in_parts(BACKENDS.load(name)(), problem, dtype, **features)


@pytest.mark.row("F04.28")
@pytest.mark.parametrize("name", ON_A_CPU)
def test_the_log_sum_exp_is_that_of_the_scores(problem: Any, name: str) -> None:
    given, backend = problem([(3, 4)], heads=(2, 1)), BACKENDS.load(name)()
    call = replace(given.call, partial=True, softcap=2.0, sinks=True)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(f"{name}: {reason}")
    sinks, lse = torch.tensor([0.5, -0.25]), torch.empty(3, 2)
    backend.forward(backend.plan(given.batch, call), given.query, given.pages, sinks, lse)
    key = given.pages[given.batch.block_table[0].long(), :, 0, 0].flatten(0, 1)
    for token in range(3):
        scores = given.query[token] @ key[: 5 + token].T * call.scale
        bent = 2 * torch.tanh(scores / 2)
        expected = torch.cat((bent, sinks[:, None]), 1).exp().sum(1).log()
        torch.testing.assert_close(lse[token], expected)


@pytest.mark.parametrize("name", ON_A_CPU)
def test_a_broken_key_shows_in_the_parts_that_see_it(problem: Any, name: str) -> None:
    given, backend = problem([(1, 100)], page_size=16), BACKENDS.load(name)()
    call = replace(given.call, partial=True)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(f"{name}: {reason}")
    given.pages[given.batch.block_table[0, 3], 5, 0] = float("nan")  # Of token 53.
    parts = []
    for span in ((0, 48), (48, 101)):
        batch, lse = replace(given.batch, ranges=(span,)), torch.empty(1, 4)
        out = backend.forward(backend.plan(batch, call), given.query, given.pages, None, lse)
        parts.append(Partial(out, lse))
    assert parts[1].out.isnan().all() and parts[1].lse.isnan().all()
    assert merge(parts).out.isnan().all()


def test_a_parts_bits_do_not_depend_on_neighbours_or_chunks(problem: Any) -> None:
    backend = BACKENDS.load("cpu")()
    given = problem([(700, 0)], heads=(6, 2), head_dim=16, page_size=16)
    call = replace(given.call, partial=True)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(reason)

    def attended(*rows: tuple[int, int]) -> torch.Tensor:
        """Out and log-sum-exp of (count, start), side by side."""
        counts, starts = zip(*rows, strict=True)
        table = given.batch.block_table.numpy().repeat(len(rows), 0)
        batch = AttentionBatch.build(counts, starts, table, 16, CPU)
        batch = replace(batch, ranges=((100, 500),) * len(rows))
        query = torch.cat([given.query[start : start + count] for count, start in rows])
        lse = torch.empty(len(query), 6)
        out = backend.forward(backend.plan(batch, call), query, given.pages, None, lse)
        return torch.cat((out, lse), 1)

    whole = attended((700, 0))
    assert torch.equal(torch.cat([attended((100, s)) for s in range(0, 700, 100)]), whole)
    assert torch.equal(attended(*[(1, p) for p in range(0, 700, 13)]), whole[::13])
    assert torch.equal(attended((1, 650))[0], whole[650])


def test_nothing_merged_with_nothing_is_nothing_and_not_a_nan() -> None:
    empty = Partial(torch.zeros(2, 6), torch.full((2, 3), -torch.inf))
    both = merge([empty, empty])
    assert not both.out.any() and both.lse.isneginf().all()
    full = Partial(torch.randn(2, 6), torch.randn(2, 3))
    for parts in ([full, empty], [empty, full]):
        merged = merge(parts)
        torch.testing.assert_close(merged.out, full.out)
        torch.testing.assert_close(merged.lse, full.lse)


def test_a_sink_is_a_part_without_a_value() -> None:
    one = Partial(torch.ones(1, 2), torch.tensor([[0.0, 1.0]]))
    merged = merge([one], torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(merged.out, torch.full((1, 2), 0.5))
    torch.testing.assert_close(merged.lse, torch.tensor([[0.0, 1.0]]) + torch.log(torch.tensor(2)))


def test_no_number_in_one_part_is_none_in_all() -> None:
    good = Partial(torch.ones(1, 2), torch.zeros(1, 1))
    bad = Partial(torch.full((1, 2), torch.nan), torch.full((1, 1), torch.nan))
    assert merge([good, bad]).out.isnan().all()
