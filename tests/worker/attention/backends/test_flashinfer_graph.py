"""FlashInfer in captured steps, as we call it: a stand-in that copies plans into fixed buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backend import RefreshedPlan
from baton_worker.attention.backends.flashinfer import FlashInferBackend
from baton_worker.attention.backends.flashinfer_mla import FlashInferMlaBackend
from tests.fakes import attention_packages as fakes

Decode = fakes.BatchDecodeWithPagedKVCacheWrapper
Latents = fakes.BatchMLAPagedAttentionWrapper


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package."""
    fakes.install(monkeypatch, "flashinfer", BatchDecodeWithPagedKVCacheWrapper=Decode)
    fakes.install(monkeypatch, "flashinfer.mla", BatchMLAPagedAttentionWrapper=Latents)
    fakes.hopper(monkeypatch, (8, 0))
    for wrapper in (Decode, Latents):
        monkeypatch.setattr(wrapper, "made", 0)


LATENT = {"latent": True, "num_kv_heads": 1, "value_dim": 512}
KINDS: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
    (FlashInferBackend, Decode, {"heads": (6, 2), "head_dim": 64}, {}),
    (FlashInferMlaBackend, Latents, {"heads": (5, 1), "head_dim": 576}, LATENT),
]


@pytest.mark.parametrize(("backend", "wrapper", "shape", "features"), KINDS)
def test_captured_steps_are_planned_before_each_replay(
    problem: Any,
    package: None,
    backend: Any,
    wrapper: Any,
    shape: dict[str, Any],
    features: dict[str, Any],
) -> None:
    """One wrapper per size, whose buffers have the pages of each step in turn: rows become longer,
    and a row of padding has one token."""
    steps = ([(1, 30), (1, 0), (1, 99)], [(1, 46), (1, 17), (1, 0)])
    longest = 128
    backend, captured, plan = backend(), None, None
    for rows in steps:
        given = problem(rows, **shape, page_size=16, dtype=torch.bfloat16)
        call, width = replace(given.call, **features), longest // 16
        pages = given.pages[:, :, :1] if features else given.pages
        if captured is None:
            table = torch.zeros(3, width, dtype=torch.int32)
            captured = replace(
                given.batch,
                block_table=table,
                seq_lens=torch.full((3,), longest, dtype=torch.int32),
                num_computed=(longest - 1,) * 3,
                captured=True,
            )
            plan = backend.plan(captured, call)
            assert isinstance(plan, RefreshedPlan)
        captured.block_table[:, : given.batch.block_table.shape[1]] = given.batch.block_table
        captured.seq_lens.copy_(given.batch.seq_lens)
        plan.refresh([start + 1 for _, start in rows])
        found = backend.forward(plan, given.query, pages)
        eager = backend.forward(backend.plan(given.batch, call), given.query, pages)
        assert torch.equal(found, eager)
    assert wrapper.made == 2 and backend.capture_blocker is None and backend.launch_blocker
