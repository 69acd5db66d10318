"""Whole models on the kernels for GPUs, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention.backends import cpu
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.attention.selector import AttentionSelector
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels import triton
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.norm import CpuNorm, TritonNorm
from baton_worker.kernels.page_layout import Layout
from baton_worker.kernels.recurrent.convolution import CpuConvolution
from baton_worker.kernels.recurrent.delta import CpuDelta
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import CpuStates
from baton_worker.layers.attention import gqa
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import RmsNorm
from baton_worker.layers.rope import rope
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be tested")
pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
TEXT = torch.randint(2, 60, (21,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> Iterator[None]:
    with interpreter():
        yield


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose CPU passes for a GPU: no kernels in C++, all those in Triton."""
    monkeypatch.setattr(cpu, "library", lambda name: None)
    for place in (CpuNorm, gqa, rope):
        monkeypatch.setattr(place, "refuses", lambda *_: "not today")
    monkeypatch.setattr(triton, "runs", lambda device: True)


def in_chunks(driver: Any, loaded: Any, text: Sequence[int] = TEXT, **fields: Any) -> torch.Tensor:
    """Logits of a text run in two chunks beside another, and of its last token decoded."""
    run = driver(loaded, 2, page_size=8, **fields)
    first = run.step({0: text[:9], 1: text[5:]})[0]
    return torch.cat((first, run.step({0: text[9:-1]})[0], run.step({0: text[-1:]})[0]))


@pytest.mark.row("F04.10")
def test_sinks_of_gpt_oss_are_those_of_transformers(
    tmp_path: Path, driver: Any, on_triton: None
) -> None:
    model = tiny_models.save_checkpoint(tmp_path, "GptOssForCausalLM")
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    layers = [m for m in loaded.model.modules() if isinstance(m, Attention)]
    assert all(isinstance(m.backend, TritonBackend) and m.call.sinks for m in layers)
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT]), use_cache=False).logits[0]
    torch.testing.assert_close(in_chunks(driver, loaded), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param("DeepseekV3ForCausalLM", marks=pytest.mark.row("F04.22")),
        pytest.param("DeepseekV32ForCausalLM", marks=pytest.mark.row("F04.26", "L04")),
        pytest.param("GlmMoeDsaForCausalLM", marks=pytest.mark.row("F04.26", "L05")),
    ],
)
def test_latents_of_deepseek_are_those_of_transformers(
    tmp_path: Path, driver: Any, on_triton: None, architecture: str
) -> None:
    model = tiny_models.save_checkpoint(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    layers = [m for m in loaded.model.modules() if isinstance(m, LatentAttention)]
    assert layers and all(
        isinstance(AttentionSelector().select(m.call), TritonBackend) for m in layers
    )
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT]), use_cache=False).logits[0]
    torch.testing.assert_close(in_chunks(driver, loaded), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["auto", "fp8"])
@pytest.mark.parametrize("layout", Layout)
def test_norms_rotation_pages_attention_and_router_are_those_of_the_twins(
    tmp_path: Path, driver: Any, on_triton: None, monkeypatch: Any, kind: str, layout: Layout
) -> None:
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")
    codes = CODES.get(kind)
    pages: dict[str, Any] = {"codes": codes, "layout": layout}
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32, **pages))
    norms = [m for m in loaded.model.modules() if isinstance(m, RmsNorm)]
    assert norms and all(isinstance(m._kernel, TritonNorm) for m in norms)
    found = in_chunks(driver, loaded, **pages)
    monkeypatch.setattr(triton, "runs", lambda device: False)
    monkeypatch.setattr(TritonBackend, "refuses", lambda *_: "not today")
    plain = load_model(tmp_path, BuildContext(CPU, torch.float32, **pages))
    expected = in_chunks(driver, plain, **pages)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM", "GPT2LMHeadModel"]
)
def test_residuals_are_added_by_the_norms_that_follow(
    tmp_path: Path, driver: Any, on_triton: None, monkeypatch: Any, architecture: str
) -> None:
    """Pre-norms, norms on both sides, and layer norms. The first norm reads no sum, and that of the
    last feed-forward reads rows that are chosen of one."""
    model = tiny_models.save_checkpoint(tmp_path, architecture)
    sums, plain = list[int](), TritonNorm.of_sum

    def watched(self: TritonNorm, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sums.append(len(given[0]))
        return plain(self, *given)

    monkeypatch.setattr(TritonNorm, "of_sum", watched)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT]), use_cache=False).logits[0]
    torch.testing.assert_close(in_chunks(driver, loaded), expected, rtol=1e-4, atol=1e-4)
    assert len(sums) == 3 * (2 * len(loaded.spec.layers) - 1), sums


@pytest.mark.parametrize(
    ("architecture", "kernels"),
    [
        pytest.param(
            "Mamba2ForCausalLM",
            {"TritonConvolution", "TritonStates"},
            marks=pytest.mark.row("F07.05"),
        ),
        pytest.param(
            "FalconMambaForCausalLM",
            {"TritonConvolution", "TritonScan"},
            marks=pytest.mark.row("F07.01"),
        ),
        pytest.param(
            "Qwen3NextForCausalLM",
            {"TritonConvolution", "TritonDelta"},
            marks=pytest.mark.row("F07.13"),
        ),
    ],
)
def test_recurrent_layers_are_those_of_transformers(
    tmp_path: Path,
    driver: Any,
    on_triton: None,
    monkeypatch: Any,
    architecture: str,
    kernels: set[str],
) -> None:
    for kernel in (CpuStates, CpuConvolution, CpuDelta, CpuScan):
        monkeypatch.setattr(kernel, "refuses", lambda *_: "not today")
    model = tiny_models.save_checkpoint(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    parts = [part for module in loaded.model.modules() for part in vars(module).values()]
    text = 2 * TEXT + TEXT[5:]  # Long enough for rows in chunks.
    made = {type(getattr(part, "_kernel", part)).__name__ for part in parts}
    assert made >= kernels
    with torch.inference_mode():
        expected = model(torch.tensor([text]), use_cache=False).logits[0]
    torch.testing.assert_close(in_chunks(driver, loaded, text), expected, rtol=1e-4, atol=1e-4)
