"""Which sampler runs, under whichever name it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baton.errors import SettingsError
from baton.protocol import Sampling
from baton_worker.config import Config
from baton_worker.engine.startup import prepare
from baton_worker.kernels import sampling as kernels
from baton_worker.kernels import triton
from baton_worker.sampling import (
    PARAMETERS,
    Sampler,
    fill,
)
from baton_worker.sampling.sampler_backend import SamplerBackend
from tests.fakes.triton_interpreter import interpreter

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton runs on GPUs, whether or not there is one."""
    monkeypatch.setattr(triton, "refuses", lambda device: None if device == GPU else "not here")
    monkeypatch.setattr(triton, "runs", lambda device: device == GPU)


@pytest.mark.parametrize(
    ("name", "on_cpu", "on_gpu"),
    [("auto", False, True), ("torch", False, False), ("TorchSampler", False, False)],
)
def test_names(gpu: None, name: str, on_cpu: bool, on_gpu: bool) -> None:
    backend = SamplerBackend.named(name, GPU)
    assert (backend.in_triton(CPU), backend.in_triton(GPU)) == (on_cpu, on_gpu)


@pytest.mark.skipif(kernels.refuses(CPU) is not None, reason="the kernels cannot be built here")
def test_a_cpu_has_a_kernel_of_its_own() -> None:
    auto = SamplerBackend()
    assert auto.in_cpp(CPU) and not auto.in_cpp(GPU)
    assert not SamplerBackend.named("torch", CPU).in_cpp(CPU)
    assert SamplerBackend.named("cpu", CPU).in_cpp(CPU)
    with pytest.raises(SettingsError, match=r"backend cpu: the CPU kernels do not run there\."):
        SamplerBackend.named("cpu", GPU)


def test_without_a_compiler_torch_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda name: None)
    assert not SamplerBackend().in_cpp(CPU)
    with pytest.raises(SettingsError, match=r"backend cpu: the CPU kernels could not be built\."):
        SamplerBackend.named("cpu", CPU)


def test_triton_is_taken_where_it_runs_and_refused_where_not(gpu: None) -> None:
    assert SamplerBackend.named("Triton", GPU).in_triton(GPU)
    with pytest.raises(SettingsError, match=r"--sampling-backend triton: not here\. Use torch"):
        SamplerBackend.named("triton", CPU)


def test_without_a_gpu_triton_is_refused_when_a_worker_starts() -> None:
    with pytest.raises(SettingsError, match="--sampling-backend triton: it needs a GPU"):
        prepare(Config(device="cpu", threads=1, sampling_backend="triton"))


def test_a_name_that_nobody_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="it is not one of auto, torch, cpu, triton"):
        SamplerBackend.named("other", CPU)


@pytest.mark.row("F09.14", refuses=True)
@pytest.mark.parametrize("name", ["TRTLLMSampler", "trtllmsampler"])
def test_the_sampler_in_cpp_of_tensorrt_llm_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"backend {name}: .*use triton, which samples on"):
        prepare(Config(device="cpu", threads=1, sampling_backend=name))


def test_the_choice_decides_which_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter; the tokens are the same."""
    pytest.importorskip("triton", reason="triton is not installed")
    parameters = np.zeros(8, PARAMETERS)
    for row in range(8):
        fill(parameters[row], Sampling(1, seed=row, temperature=0.9, top_p=0.9))
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(0)) * 3
    ran, found = list[str](), []
    from baton_worker.sampling import sampler

    for name in ("_fused", "_draw_in_torch"):
        plain = getattr(sampler, name)

        def noted(*args: Any, plain: Any = plain, name: str = name) -> Any:
            ran.append(name)
            return plain(*args)

        monkeypatch.setattr(sampler, name, noted)
    with interpreter():
        for wanted in ("torch", "triton"):
            if torch.cuda.is_available() and wanted == "triton":
                logits = logits.to("cuda")
            backend = SamplerBackend.named(wanted, logits.device)
            found.append(Sampler(backend).sample(logits.clone(), parameters, np.arange(8)))
    assert ran == ["_draw_in_torch", "_fused"] and np.array_equal(*found)
