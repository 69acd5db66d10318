"""bfloat16 on CPUs that do not multiply it: where our kernels compute every product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker import spec
from baton_worker.checkpoint.bf16_expansion import is_expanded
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels import cpu
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import resolve
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_encoders, tiny_models

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels() -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")


def body(folder: Path, architecture: str) -> spec.Decoder:
    tiny_models.tiny_config(architecture).save_pretrained(folder)
    return resolve(read_config(folder))


@pytest.mark.parametrize(
    ("architecture", "expanded"),
    [
        ("LlamaForCausalLM", True),
        ("MixtralForCausalLM", True),
        ("Mamba2ForCausalLM", True),
        ("Qwen3NextForCausalLM", True),
        ("DeepseekV3ForCausalLM", False),
    ],
)
def test_torch_has_products_of_some_models(
    tmp_path: Path, architecture: str, expanded: bool
) -> None:
    assert is_expanded(body(tmp_path, architecture)) is expanded


def test_torch_attends_over_whole_texts(tmp_path: Path) -> None:
    tiny_encoders.save(tmp_path, "BertModel")
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32), narrow=torch.bfloat16)
    assert not is_expanded(loaded.spec) and loaded.model.dtype is torch.float32


def test_without_kernels_nothing_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = body(tmp_path, "LlamaForCausalLM")
    monkeypatch.setattr(cpu, "library", lambda name: None)
    assert not is_expanded(decoder)


@pytest.mark.parametrize("narrow", [None, torch.bfloat16])
def test_a_model_is_loaded_in_what_it_can(tmp_path: Path, narrow: torch.dtype | None) -> None:
    for architecture, expanded in (("LlamaForCausalLM", True), ("DeepseekV3ForCausalLM", False)):
        folder = tmp_path / architecture
        tiny_models.save_checkpoint(folder, architecture)
        loaded = load_model(folder, BuildContext(CPU, torch.float32), narrow=narrow)
        wanted = narrow if expanded and narrow is not None else torch.float32
        assert loaded.model.dtype is wanted
