"""Settings become devices, dtypes, threads and kernels; what cannot be is refused."""

from __future__ import annotations

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.kernels.kv_codes import ALIGNMENT
from baton_worker.kernels.page_layout import Layout
from baton_worker.layers.build_context import BuildContext
from baton_worker.platform import machine

CPU = torch.device("cpu")
resolved = BuildContext.from_config


@pytest.mark.parametrize(("fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_dtype_follows_the_cpu(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(machine, "has_fast_bfloat16", lambda: fast)
    assert resolved(Config(device="cpu")).dtype is dtype


def test_given_values_are_kept() -> None:
    given = Config(device="cpu", dtype="float16", threads=3, kv_cache_layout="nhd")
    context = resolved(given)
    assert (context.device, context.dtype, context.threads) == (CPU, torch.float16, 3)
    assert (context.codes, context.layout) == (None, Layout.NHD)
    assert context.quantization == "none"
    assert resolved(Config(device="cpu", quantization="int8")).quantization == "int8"


def test_products_of_integers_run_on_a_cpu_and_on_one_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolved(Config(device="cpu", int8_activations=True)).int8_inputs
    with pytest.raises(SettingsError, match="--int8-activations: ranks would round"):
        resolved(Config(device="cpu", int8_activations=True, tensor_parallel_size=2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        SettingsError, match="--int8-activations: products of integers run on a CPU"
    ):
        resolved(Config(device="cuda", int8_activations=True))


def test_the_order_of_pages_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolved(Config(device="cpu")).layout is Layout.HND
    assert resolved(Config(device="cuda")).layout is Layout.NHD
    codes = resolved(Config(device="cuda", kv_cache_dtype="fp8")).codes
    assert codes is not None and codes.tail == ALIGNMENT
    assert resolved(Config(device="cuda", kv_cache_layout="hnd")).layout is Layout.HND


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 5)
    assert resolved(Config(device="cpu")).threads == 5


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 5)
    assert resolved(Config(device="cpu", tensor_parallel_size=2)).threads == 2
    assert resolved(Config(device="cpu", tensor_parallel_size=2, threads=8)).threads == 4
    assert resolved(Config(device="cpu", tensor_parallel_size=8)).threads == 1


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [
        resolved(Config(dtype="float16", tensor_parallel_size=2), rank).device for rank in range(2)
    ]
    assert devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(SettingsError, match="PyTorch sees 2 GPUs here, and each of 4 ranks"):
        resolved(Config(dtype="float16", tensor_parallel_size=4))


def test_each_worker_of_a_group_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    group = [
        Config(dtype="float16", data_parallel_size=2, data_parallel_rank=rank) for rank in range(2)
    ]
    assert [resolved(config).device.index for config in group] == [0, 1]
    with pytest.raises(SettingsError, match="--data-parallel-size 3: PyTorch sees 2 GPUs here"):
        resolved(Config(dtype="float16", data_parallel_size=3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_refused() -> None:
    with pytest.raises(SettingsError, match="no GPU"):
        resolved(Config(device="cuda"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention_backend": "flash"}, "Unknown attention 'flash'"),
        ({"moe_backend": "looop"}, "Unknown experts 'looop'"),
        ({"sampling_backend": "other"}, "it is not one of auto, torch, cpu, triton"),
    ],
)
def test_an_unknown_kernel_is_refused(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        resolved(Config(device="cpu", **changes))


def test_kernels_of_attention_are_counted_where_that_is_set() -> None:
    assert resolved(Config(device="cpu")).attention.counts is None
    assert resolved(Config(device="cpu", runtime_stats=True)).attention.counts is not None


def test_gpus_are_chosen_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    chosen = Config(dtype="float16", tensor_parallel_size=2, gpu="3,1")
    assert [resolved(chosen, rank).device.index for rank in range(2)] == [3, 1]
    assert resolved(Config(dtype="float16", gpu="2")).device == torch.device("cuda", 2)
    for wrong in ("4", "1,x"):
        with pytest.raises(SettingsError, match="--gpu"):
            resolved(Config(dtype="float16", gpu=wrong))
    with pytest.raises(SettingsError, match="each of 2 ranks needs one of its own"):
        resolved(Config(dtype="float16", tensor_parallel_size=2, gpu="1,1"))


def test_a_gpu_that_cannot_be_used_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("baton.process.nvidia.count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert resolved(Config(device="auto")).device == CPU
    assert "cannot use: it is built for CUDA 13.0" in caplog.text
    with pytest.raises(SettingsError, match="has an NVIDIA GPU that PyTorch"):
        resolved(Config(device="cuda"))
