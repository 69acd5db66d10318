"""Who launches ahead, and what is said where nobody does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.engine.async_scheduling.policy import refuses
from baton_worker.layers.build_context import BuildContext
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend
from tests.support import tiny_models

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.row("F13.08")
def test_reasons(stories: Path) -> None:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    sampler = Sampler(SamplerBackend("triton"))
    assert refuses(Config(), GPU, loaded, sampler) is None
    settings: dict[str, dict[str, Any]] = {
        "--no-async-scheduling": {"async_scheduling": False},
        "agree on every step": {"data_parallel_size": 2},
        "look at every step": {"runtime_stats": True},
        "adapters of every step": {"enable_lora": True},
    }
    for said, changes in settings.items():
        assert said in str(refuses(Config(**changes), GPU, loaded, sampler))
    assert "CPU" in str(refuses(Config(), CPU, loaded, sampler))
    mute = replace(loaded, generates=False)
    assert "no next tokens" in str(refuses(Config(), GPU, mute, sampler))
    slow = Sampler(SamplerBackend("torch"))
    assert "sampler" in str(refuses(Config(), GPU, loaded, slow))


@pytest.mark.parametrize(
    "architecture", ["Mamba2ForCausalLM", "FalconMambaForCausalLM", "Lfm2ForCausalLM"]
)
def test_recurrent_layers_do_not_wait(tmp_path: Path, architecture: str) -> None:
    """Their plans are of the host, and need no step before."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    assert refuses(Config(), GPU, loaded, Sampler(SamplerBackend("triton"))) is None
