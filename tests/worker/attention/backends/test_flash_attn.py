"""FlashAttention-2 as we call it, against the reference: a stand-in, and itself on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backends.flash_attn import FlashAttnBackend
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from tests.fakes.attention_packages import flash_attn_varlen_func, hopper, install
from tests.worker.attention.conftest import as_the_reference

CUDA = torch.device("cuda")
ROWS = {
    "decode": [(1, 30), (1, 0), (1, 299)],
    "mixed": [(1, 30), (50, 0), (1, 270), (4, 9), (20, 313)],
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20},
    "soft cap": {"softcap": 3.0},
    "ALiBi in a window": {"slopes": (0.5, 0.25, 0.125, 0.0625, 0.03, 0.01), "window": 100},
}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, on a machine with a GPU for it."""
    install(monkeypatch, "flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    hopper(monkeypatch, (8, 0))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("page_size", [16, 256], ids=["copied", "in place"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_is_asked_for_what_the_reference_computes(
    problem: Any,
    package: None,
    features: dict[str, Any],
    rows: list[tuple[int, int]],
    page_size: int,
    layout: Layout,
) -> None:
    given = problem(rows, heads=(6, 2), page_size=page_size, dtype=torch.bfloat16)
    backend, call = FlashAttnBackend(), replace(given.call, **features)
    assert backend.refuses(replace(call, device=CUDA)) is None
    as_the_reference(backend, given, call, layout)
    assert (backend.plan(given.batch, call).tokens is None) == (page_size == 256)


@pytest.mark.parametrize("group", [1, 5, 12, 16])
def test_any_number_of_heads_shares_a_key(problem: Any, package: None, group: int) -> None:
    given = problem(ROWS["mixed"], heads=(2 * group, 2), dtype=torch.float16)
    as_the_reference(FlashAttnBackend(), given, given.call)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 264}, "heads of 256 channels at most, in eights, not 264"),
        ({"head_dim": 20}, "in eights, not 20"),
        ({"sinks": True}, "it does not know sinks"),
        ({"chunk": 7}, "it does not know chunk"),
        ({"codes": CODES["fp8"]}, "it does not know codes"),
        ({"value_dim": 8}, "it does not know value_dim"),
        ({"latent": True}, "it does not know latent"),
        ({"partial": True, "tree": True}, "it does not know partial, tree"),
        ({"dtype": torch.float32}, "no kernel for torch.float32"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, package: None, change: dict[str, Any], said: str
) -> None:
    call = problem([(1, 1)], head_dim=16, dtype=torch.bfloat16).call
    assert said in str(FlashAttnBackend().refuses(replace(call, device=CUDA, **change)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("page_size", [16, 256])
def test_gives_what_the_reference_gives_on_a_gpu(problem: Any, page_size: int) -> None:
    pytest.importorskip("flash_attn")
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=64, page_size=page_size,
                    dtype=torch.bfloat16).to(CUDA)  # fmt: skip
    for features in FEATURES.values():
        as_the_reference(FlashAttnBackend(), given, replace(given.call, **features))
