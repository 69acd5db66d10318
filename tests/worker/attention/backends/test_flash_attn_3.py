"""FlashAttention-3 as we call it, against the reference: a stand-in, and itself on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backends import gpu_packages
from baton_worker.attention.backends.flash_attn_3 import FlashAttn3Backend
from baton_worker.kernels.page_layout import Layout
from tests.fakes.attention_packages import flash_attn_with_kvcache, hopper, install
from tests.worker.attention.conftest import as_the_reference

CUDA = torch.device("cuda")
ROWS = [(1, 30), (50, 0), (1, 270), (4, 9), (20, 113)]
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20},
    "soft cap": {"softcap": 3.0},
    "narrow values": {"value_dim": 24},
    "latents": {"latent": True, "num_kv_heads": 1, "value_dim": 256, "head_dim": 288},
}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, on a machine with a GPU for it."""
    members = {"flash_attn_with_kvcache": flash_attn_with_kvcache}
    install(monkeypatch, "flash_attn_interface", **members)
    hopper(monkeypatch)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("page_size", [3, 16])
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_is_asked_for_what_the_reference_computes(
    problem: Any, package: None, features: dict[str, Any], page_size: int, layout: Layout
) -> None:
    dim = features.get("head_dim", 32)
    given = problem(ROWS, heads=(6, 2), head_dim=dim, page_size=page_size, dtype=torch.bfloat16)
    backend, call = FlashAttn3Backend(), replace(given.call, **features)
    assert backend.refuses(replace(call, device=CUDA)) is None
    as_the_reference(backend, given, call, layout)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 264}, "no kernel for keys of 264 and values of 264 channels"),
        ({"head_dim": 192, "value_dim": 64}, "no kernel for keys of 192 and values of 64"),
        ({"head_dim": 20}, "channels in eights, not 20"),
        ({"latent": True, "head_dim": 128, "value_dim": 64}, "no kernel for latents of 64"),
        ({"latent": True, "head_dim": 640, "value_dim": 512}, "channels and 128 rotated ones"),
        ({"slopes": (1.0,) * 4, "chunk": 4}, "it does not know slopes, chunk"),
        ({"partial": True}, "it does not know partial"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, package: None, change: dict[str, Any], said: str
) -> None:
    call = problem([(1, 1)], head_dim=16, dtype=torch.bfloat16).call
    assert said in str(FlashAttn3Backend().refuses(replace(call, device=CUDA, **change)))


def test_older_gpus_are_refused(
    problem: Any, package: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper(monkeypatch, (8, 0))
    call = replace(problem([(1, 1)], dtype=torch.bfloat16).call, device=CUDA)
    said = FlashAttn3Backend().refuses(call)
    assert said == "it needs a GPU of compute capability 9.0, this one has 8.0"


def test_both_names_of_the_module_and_no_other_interface(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream has the module beside the package `flash_attn_3`, and later within it too."""
    hopper(monkeypatch)
    given = problem(ROWS[:2], heads=(6, 2), head_dim=32, page_size=16, dtype=torch.bfloat16)
    call, backend = replace(given.call, device=CUDA), FlashAttn3Backend()
    name, function = "flash_attn_interface", {"flash_attn_with_kvcache": flash_attn_with_kvcache}
    assert f"{name} is not installed" in str(backend.refuses(call))
    package = install(monkeypatch, "flash_attn_3", __path__=[])
    inside = install(monkeypatch, f"flash_attn_3.{name}", **function)
    monkeypatch.setattr(package, name, inside, raising=False)
    assert backend.refuses(call) is None
    as_the_reference(backend, given, given.call, Layout.NHD)
    install(monkeypatch, name, flash_attn_with_kvcache=lambda q, k_cache, v_cache, causal: q)
    said = str(backend.refuses(call))
    assert "this version of flash_attn_interface has no cache_seqlens, cu_seqlens_q, max" in said
    install(monkeypatch, name)
    assert "has no flash_attn_with_kvcache: `pip install`" in str(backend.refuses(call))
    monkeypatch.setattr(gpu_packages, "import_module", broken)
    assert "cannot be imported (undefined symbol)" in str(backend.refuses(call))


def broken(name: str) -> None:
    """What a package that was built for another PyTorch does."""
    raise ImportError("undefined symbol")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_gives_what_the_reference_gives_on_a_gpu(problem: Any, features: dict[str, Any]) -> None:
    pytest.importorskip("flash_attn_interface")
    dim = features.get("head_dim", 64)
    given = problem(ROWS, heads=(6, 2), head_dim=dim, page_size=16, dtype=torch.bfloat16)
    given, backend = given.to(CUDA), FlashAttn3Backend()
    call = replace(given.call, **features)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(reason)
    as_the_reference(backend, given, call)
