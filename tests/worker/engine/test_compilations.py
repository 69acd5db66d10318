"""Nothing is compiled while a GPU serves: what steps launch, the warm-up has launched before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.engine_config import resolve
from baton_worker.graphs import Repeater, Sizes
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend
from tests.fakes.host_link import HostLink
from tests.fakes.kernel_specialisations import specialisations
from tests.support import quantized_checkpoints, tiny_models
from tests.support.worker import gpu_kernels
from tests.support.worker.mixed_plans import PROMPTS, serve

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be specialised")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu counts what is compiled for the device itself"
)
PLANS, LONGEST = 200, 1200
_GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
_LONG = {"max_position_embeddings": LONGEST}
_WIDTHS = {
    **{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32},
}
_MIXED = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}


def _int4(folder: Path) -> None:
    method = quantized_checkpoints.gptq(symmetric=False)
    quantized_checkpoints.save(folder, "LlamaForCausalLM", _GPTQ, method, **_WIDTHS, **_LONG)


def _plain(architecture: str, **changes: Any) -> Callable[[Path], object]:
    return lambda folder: tiny_models.save_checkpoint(folder, architecture, **_LONG, **changes)


MODELS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "dense": (_plain("LlamaForCausalLM", num_hidden_layers=1), {"attend", "merge", "narrow"}),
    "windows": (_plain("Gemma3ForCausalLM"), {"attend"}),
    "int4": (_int4, {"attend", "_product"}),
    "experts": (_plain("MixtralForCausalLM", num_hidden_layers=1), {"_align", "_product"}),
    "states": (_plain("FalconH1ForCausalLM", num_hidden_layers=1), {"_find", "_carry", "_scan"}),
    "delta nets": (_plain("Qwen3NextForCausalLM", **_MIXED), {"_find", "_walk", "_solve"}),
}
"""Tiny models, and some kernels of each."""


def _engine(folder: Path) -> Engine:
    """An engine whose steps are launched ahead, and captured by a twin of CUDA graphs."""
    given: dict[str, Any] = {"num_gpu_blocks_override": 4096, "max_num_seqs": 40}
    given["max_num_batched_tokens"] = LONGEST
    config = Config(model=str(folder), device="cpu", max_model_len=LONGEST, **given)
    build = gpu_kernels.context(sampler=Sampler(SamplerBackend("triton")))
    loaded = load_model(folder, build, served_length=LONGEST)
    captured = Sizes.up_to(16, LONGEST, tokens=64)
    resolved = replace(resolve(config, build, loaded), graphs=captured, synchronous="")
    return Engine(loaded, resolved, recorder=Repeater(), link=HostLink())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_warm_up_compiles_whatever_mixed_plans_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save, kernels = MODELS[name]
    save(tmp_path)
    with specialisations() as launched:
        gpu_kernels.use(monkeypatch)
        engine = _engine(tmp_path)
        engine.warm_up()
        warm = len(launched)
        assert serve(engine, PLANS, (*PROMPTS, 530)) > PLANS / 3
        assert kernels <= {kernel.rpartition(".")[2] for kernel, *_ in launched}
        assert launched[warm:] == []


@pytest.mark.slow
def test_a_count_that_is_specialised_on_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, _ = MODELS["dense"]
    save(tmp_path)
    with specialisations() as launched:
        from baton_worker.kernels.triton.attention import tile

        plain = tile.attend.kwargs | {"do_not_specialize": None}
        monkeypatch.setattr(tile.attend, "kwargs", plain)
        gpu_kernels.use(monkeypatch)
        engine = _engine(tmp_path)
        engine.warm_up()
        warm = len(launched)
        serve(engine, PLANS)
        kernels = {kernel for kernel, *_ in launched[warm:]}
        assert kernels == {f"{tile.__name__}.attend"}
