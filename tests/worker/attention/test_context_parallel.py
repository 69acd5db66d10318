"""Decode context parallelism: ranks with interleaved tokens attend as one rank with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, AttentionSpec
from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.context_parallel import ContextParallelBackend, part
from tests.fakes.threaded_ranks import Threaded, together
from tests.worker.attention.conftest import ON_A_CPU, Problem, kept, make_problem, sinks_for

CPU = torch.device("cpu")
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft cap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "sinks of each token": {"token_sinks": True},
    "narrow values": {"value_dim": 5},
    "latents": {"latent": True, "value_dim": 5},
}
ROWS = {
    "decode": [(1, 0), (1, 1), (1, 2), (1, 7), (1, 40), (1, 41)],
    "prefill": [(50, 0)],
    "begins": [(1, 0), (2, 0), (3, 0), (4, 0), (2, 1), (3, 2)],
    "mixed": [(1, 30), (30, 13), (1, 4), (9, 0)],
}


def attend(
    name: str, given: Problem, call: AttentionSpec, size: int, ranks: int | None = None
) -> list[torch.Tensor]:
    """What each rank answers to its own query heads, of groups of `size`. The query heads of each
    group are those of `given`, which has one key head."""
    backend, pages, own = BACKENDS.load(name)(), kept(given, call), call.num_heads // size
    if (reason := backend.refuses(replace(call, partial=True))) is not None:
        pytest.skip(f"{name}: {reason}")
    sinks = sinks_for(given, call)

    def answer(peers: Threaded) -> torch.Tensor:
        rank = peers.rank % size
        mine = replace(call, num_heads=own, context=(rank, size))
        heads, here = slice(rank * own, rank * own + own), BACKENDS.load(name)()
        assert here.refuses(part(mine)) is None
        wrapped = ContextParallelBackend(here, (rank, size), peers)
        own_sinks = None if sinks is None else sinks[..., heads]
        plan = wrapped.plan(given.batch, mine)
        query, some = given.query[:, heads], pages[:, rank::size].contiguous()
        return wrapped.forward(plan, query, some, own_sinks)

    return together(ranks or size, answer)


@pytest.mark.row("F04.29", "F14.09")
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("name", ON_A_CPU)
def test_all_parts_of_the_tokens_are_the_whole(name: str, features: dict[str, Any]) -> None:
    for rows, size in product(ROWS.values(), [2, 3, 4]):
        given = make_problem(rows, heads=(12, 1), page_size=12)
        call, backend = replace(given.call, **features), BACKENDS.load("reference")()
        plan = backend.plan(given.batch, call)
        whole = backend.forward(plan, given.query, kept(given, call), sinks_for(given, call))
        found = torch.cat(attend(name, given, call, size), dim=1)
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


def test_several_groups_do_not_hear_of_each_other() -> None:
    """Four ranks in two groups: either is asked the same and answers the same."""
    given = make_problem(ROWS["mixed"], heads=(4, 1))
    alone = attend("reference", given, given.call, 2)
    both = attend("reference", given, given.call, 2, ranks=4)
    for found, expected in zip(both, alone + alone, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_neighbours_or_chunks(dtype: torch.dtype) -> None:
    backend = BACKENDS.load("cpu")()
    whole = make_problem([(300, 0)], heads=(6, 1), head_dim=16, page_size=16, dtype=dtype)
    if (reason := backend.refuses(replace(whole.call, partial=True))) is not None:
        pytest.skip(reason)

    def answers(*rows: tuple[int, int]) -> torch.Tensor:
        """To tokens of one sequence, in rows (new tokens, tokens before them)."""
        counts, starts = zip(*rows, strict=True)
        table = whole.batch.block_table[0].tolist()
        batch = AttentionBatch.build(counts, starts, [table] * len(rows), 16, CPU)
        tokens = torch.cat([torch.arange(s, s + c) for c, s in rows])
        given = Problem(whole.call, batch, whole.query[tokens], whole.pages)
        return torch.cat(attend("cpu", given, whole.call, 2), dim=1)

    together = answers((300, 0))
    chunks = [answers((n, at)) for at, n in ((0, 1), (1, 6), (7, 100), (107, 193))]
    assert torch.equal(torch.cat(chunks), together)
    among = answers((1, 299), (40, 60), (1, 0), (3, 17))
    wanted = [*range(299, 300), *range(60, 100), 0, *range(17, 20)]
    assert torch.equal(among, together[wanted])


@pytest.mark.parametrize("size", [2, 4])
def test_every_key_goes_to_one_rank_and_the_rest_to_nobodys_page(size: int) -> None:
    given = make_problem([(9, 5), (1, 30)], heads=(4, 1), page_size=8)
    own, spare = 8 // size, len(given.pages) - 1
    taken = list[tuple[int, int]]()
    for rank in range(size):
        wrapped = ContextParallelBackend(
            BACKENDS.load("reference")(), (rank, size), _at(rank, size)
        )
        call = replace(given.call, context=(rank, size))
        slots = wrapped.plan(given.batch, call).slots(given.pages[:, :own])
        for slot, local in zip(given.batch.slot_mapping.tolist(), slots.tolist(), strict=True):
            page, offset = divmod(slot, 8)
            if offset % size == rank:
                taken.append((slot, local))
                assert local == page * own + offset // size
            else:
                assert local // own == spare
    assert sorted(slot for slot, _ in taken) == sorted(given.batch.slot_mapping.tolist())


def test_a_broken_key_shows_in_all_heads() -> None:
    given = make_problem([(1, 40), (1, 40)], heads=(4, 1))
    given.pages[given.batch.block_table[0, 3], 1, 0] = float(
        "nan"
    )  # Of token 13, which rank 1 has.
    for found in attend("cpu", given, given.call, 2):
        assert found[0].isnan().all() and not found[1].isnan().any()


def _at(rank: int, size: int) -> Any:
    return Threaded(rank, size, [], None)  # type: ignore[arg-type]


def test_a_row_sees_one_more_key_per_token() -> None:
    """Of positions 0 .. 6, rank 1 of 2 has 1, 3, 5: those see 1, 2, 3 of them, the others as many
    as came before, and the first none."""
    given, seen = make_problem([(7, 0)], heads=(2, 1)), Seen()
    ContextParallelBackend(seen, (1, 2), _at(1, 2)).plan(
        given.batch, replace(given.call, context=(1, 2))
    )
    [batch] = seen.batches
    assert batch.query_lens == (1, 3, 3) and batch.seq_lens.tolist() == [1, 3, 3]
    assert batch.ranges is not None and [span[1] > 0 for span in batch.ranges] == [
        False,
        True,
        True,
    ]
    assert batch.page_size == 2


class Seen:
    """A backend that remembers what it was to plan."""

    layouts, capture_blocker = BACKENDS.load("reference").layouts, None
    launch_blocker = None

    def __init__(self) -> None:
        self.batches: list[AttentionBatch] = []

    def refuses(self, call: AttentionSpec) -> str | None:
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Sequence[int]:
        self.batches.append(batch)
        return ()

    def forward(self, *given: Any) -> torch.Tensor:
        raise NotImplementedError
