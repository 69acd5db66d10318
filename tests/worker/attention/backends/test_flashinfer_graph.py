"""FlashInfer in captured steps, as we call it: a stand-in that copies plans into fixed buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backend import RefreshedPlan
from baton_worker.attention.backends.flashinfer import FlashInferBackend
from tests.fakes import attention_packages as fakes

Decode = fakes.BatchDecodeWithPagedKVCacheWrapper


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package."""
    fakes.install(monkeypatch, "flashinfer", BatchDecodeWithPagedKVCacheWrapper=Decode)
    fakes.hopper(monkeypatch, (8, 0))
    monkeypatch.setattr(Decode, "made", 0)


def test_captured_steps_are_planned_before_each_replay(problem: Any, package: None) -> None:
    """One wrapper per size, whose buffers have the pages of each step in turn: rows become longer,
    and a row of padding has one token."""
    steps = ([(1, 30), (1, 0), (1, 99)], [(1, 46), (1, 17), (1, 0)])
    longest = 128
    backend, captured, plan = FlashInferBackend(), None, None
    for rows in steps:
        given = problem(rows, heads=(6, 2), head_dim=64, page_size=16, dtype=torch.bfloat16)
        width = longest // 16
        if captured is None:
            table = torch.zeros(3, width, dtype=torch.int32)
            captured = replace(
                given.batch,
                block_table=table,
                seq_lens=torch.full((3,), longest, dtype=torch.int32),
                num_computed=(longest - 1,) * 3,
                captured=True,
            )
            plan = backend.plan(captured, given.call)
            assert isinstance(plan, RefreshedPlan)
        captured.block_table[:, : given.batch.block_table.shape[1]] = given.batch.block_table
        captured.seq_lens.copy_(given.batch.seq_lens)
        plan.refresh([start + 1 for _, start in rows])
        found = backend.forward(plan, given.query, given.pages)
        eager = backend.forward(backend.plan(given.batch, given.call), given.query, given.pages)
        assert torch.equal(found, eager)
    assert Decode.made == 2 and backend.capture_blocker is None and backend.launch_blocker
