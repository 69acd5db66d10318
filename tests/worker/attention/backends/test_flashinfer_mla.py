"""FlashInfer over latents as we call it, against the reference."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backends.flashinfer_mla import FlashInferMlaBackend
from baton_worker.kernels.page_layout import Layout
from tests.fakes import attention_packages as fakes
from tests.worker.attention.conftest import as_the_reference

CUDA = torch.device("cuda")
Wrapper = fakes.BatchMLAPagedAttentionWrapper
LATENT: dict[str, Any] = {"latent": True, "num_kv_heads": 1, "value_dim": 512}
ROWS = {"decode": [(1, 30), (1, 0), (1, 99)], "mixed": [(1, 30), (20, 0), (1, 47), (4, 9)]}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, on a machine with a GPU for it."""
    fakes.install(monkeypatch, "flashinfer")
    members = {"BatchMLAPagedAttentionWrapper": Wrapper}
    fakes.install(monkeypatch, "flashinfer.mla", **members)
    fakes.hopper(monkeypatch)
    monkeypatch.setattr(Wrapper, "made", 0)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_is_asked_for_what_the_reference_computes(
    problem: Any, package: None, rows: list[tuple[int, int]], layout: Layout
) -> None:
    given = problem(rows, heads=(5, 1), head_dim=576, page_size=16, dtype=torch.bfloat16)
    backend, call = FlashInferMlaBackend(), replace(given.call, **LATENT)
    assert backend.refuses(replace(call, device=CUDA)) is None
    as_the_reference(backend, given, call, layout)
    gc.collect()
    as_the_reference(backend, given, call, layout)
    assert Wrapper.made == 1, "the second step plans with the wrapper of the first"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latent": False, "value_dim": None}, "it serves latent attention only"),
        ({"head_dim": 320, "value_dim": 256}, "512 channels and 64 rotated ones, not 256 and 64"),
        ({"window": 9}, "it has no windows"),
        ({"partial": True}, "it does not know partial"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, package: None, change: dict[str, Any], said: str
) -> None:
    call = replace(problem([(1, 1)], head_dim=576, dtype=torch.bfloat16).call, **LATENT)
    assert said in str(FlashInferMlaBackend().refuses(replace(call, device=CUDA, **change)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gives_what_the_reference_gives_on_a_gpu(problem: Any) -> None:
    pytest.importorskip("flashinfer")
    given = problem(ROWS["mixed"], heads=(16, 1), head_dim=576, dtype=torch.bfloat16)
    given = given.to(CUDA)
    as_the_reference(FlashInferMlaBackend(), given, replace(given.call, **LATENT))
