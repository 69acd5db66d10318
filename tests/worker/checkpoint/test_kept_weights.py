"""Weights that outlive a worker, in memory of a device double."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.kept_weights import WeightKeeper, key_of
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.kernels import linear, packed_linear, packed_weights
from baton_worker.kernels.cpu.int8_linear import Int8Linear
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.cpu.trellis_linear import TrellisLinear
from baton_worker.kernels.linear import OneDnnLinear
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from tests.fakes.kept_device import KeptDevice, kept_device
from tests.fakes.triton_interpreter import interpreter
from tests.support import tiny_models
from tests.support.worker.quantization_cases import save

KINDS = ("Gemma3ForCausalLM", "DeepseekV3ForCausalLM", "Qwen3NextForCausalLM")
"""Tied heads, norms with an offset, experts, latents, states."""
PACKED = (*("gptq-order", "modelopt-fp8", "nvfp4", "quark-mxfp4", "fp-quant", "w8a8"),)
"""By the classes of weights that kernels of GPUs take, and one that becomes floats."""
SITE = BuildContext(torch.device("cpu"), torch.float32)
TOKENS = torch.tensor([3, 7, 9, 11, 2, 5, 8])


def logits(loaded: LoadedModel) -> torch.Tensor:
    """Of a prompt."""
    model: Any = loaded.model
    cache = KVCache(loaded.kv_spec, 4, 16, dtype=torch.float32, device=SITE.device)
    tables = np.zeros((1, 1, 1), np.int32)
    batch = AttentionBatch.build_all((7,), (0,), tables, 16, SITE.device)
    with torch.inference_mode():
        found: torch.Tensor = model.logits(model.forward(TOKENS, torch.arange(7), batch, cache))
    return found


def keeper_of(folder: Path, device: KeptDevice) -> WeightKeeper:
    config = Config(model=str(folder), device="cpu")
    return WeightKeeper(device.client, key_of(config, folder, ()))


def spoil(weights: Path) -> None:
    """What is zeros cannot be read again."""
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))


def test_the_next_worker_reads_no_weights_and_computes_the_same_bits(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with kept_device(run_dir, tmp_path) as device:
        for kind in KINDS:
            folder = tmp_path / kind
            tiny_models.save_checkpoint(folder, kind)
            plain, keeper = load_model(folder, SITE), keeper_of(folder, device)
            expected = logits(plain)
            first = load_model(folder, SITE, keeper=keeper)
            assert first.kept is not None and not first.kept.as_left and keeper.has_them
            sizes = list(device.driver.sizes.values())
            assert torch.equal(logits(first), expected)
            spoil(folder / "model.safetensors")
            second = load_model(folder, SITE, keeper=keeper)
            assert second.kept is not None and second.kept.as_left
            assert "the checkpoint is not read" in caplog.messages[-1]
            assert torch.equal(logits(second), expected), kind
            assert list(device.driver.sizes.values()) == sizes, "once for both"
            assert second.weight_bytes == plain.weight_bytes
            keeper.drop()
            del first, second
            gc.collect()
            device.keeper.sweep()
            assert not device.driver.sizes


def test_what_is_damaged_unfinished_or_not_described_is_loaded(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "model"
    tiny_models.save_checkpoint(folder, KINDS[0])
    expected = logits(load_model(folder, SITE))
    with kept_device(run_dir, tmp_path) as device:
        keeper = keeper_of(folder, device)
        first = load_model(folder, SITE, keeper=keeper)
        assert first.kept is not None
        first.kept.blocks.memories[0].memory[:64] = 1
        second = load_model(folder, SITE, keeper=keeper)
        assert "the checkpoint is not read" not in caplog.text, "as a wild write would"
        assert second.kept is not None and second.kept.blocks.memories[0].whole
        assert torch.equal(logits(second), expected)
        keeper = WeightKeeper(device.client, b"p" * 32)
        packed = load_model(folder, replace(SITE, quantization="int8"), keeper=keeper)
        assert packed.kept is None and not keeper.has_them
        assert (
            "do not outlive it: Head cannot be described (baton_worker.kernels.cpu" in caplog.text
        )
        device.driver.capacity = 0
        other = WeightKeeper(device.client, b"o" * 32)
        private = load_model(folder, SITE, keeper=other)
        assert private.kept is None and torch.equal(logits(private), expected)
        assert "weights of this worker do not outlive it: cuMemAlloc_v2" in caplog.text


def test_packed_weights_and_their_layouts_outlive_a_worker(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every scheme, in every place; by the kernels of a GPU."""
    pytest.importorskip("triton", reason="triton is not installed")
    caplog.set_level("INFO")
    as_on_gpus(monkeypatch)
    with interpreter(), kept_device(run_dir, tmp_path) as device:
        for name in PACKED:
            folder = tmp_path / name
            save(folder, name)
            plain, keeper = load_model(folder, SITE), keeper_of(folder, device)
            first = load_model(folder, SITE, keeper=keeper)
            assert first.kept is not None and keeper.has_them, name
            assert len(first.kept.blocks.memories) > 1, name
            expected = [tensor.clone() for _, tensor in made(plain)]
            answer = logits(plain) if name == PACKED[0] else None
            spoil(folder / "model.safetensors")
            second = load_model(folder, SITE, keeper=keeper)
            assert "the checkpoint is not read" in caplog.messages[-1], name
            for loaded in (first, second):
                found = [tensor for _, tensor in made(loaded)]
                assert all(map(same, found, expected)) and len(found) == len(expected), name
                assert not private(loaded), name
                assert loaded.weight_bytes == plain.weight_bytes
            assert answer is None or torch.equal(logits(second), answer)
            first.kept.drop()
            del first, second, loaded, found, expected
            gc.collect()
            device.keeper.sweep()
            assert not device.driver.sizes


def made(loaded: LoadedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of layers with packed or changed weights, in the same order for the same model;
    each with a name."""
    for layer in loaded.model.layers():
        if layer.single_use:
            for name in layer.processed:
                for kind, tensor in tensors_in([getattr(layer, name)]):
                    yield f"{type(layer).__name__}.{name}: {kind}", tensor


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats cannot be compared."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def private(loaded: LoadedModel) -> list[str]:
    """Tensors of such layers that lie in memory of this process."""
    assert loaded.kept is not None
    blocks = [kept.memory for kept in loaded.kept.blocks.memories]
    return [
        name
        for name, tensor in made(loaded)
        if tensor.numel()
        and not any(0 <= tensor.data_ptr() - b.data_ptr() < len(b) for b in blocks)
    ]


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """All that an object refers to, by the type of what has it."""
    seen = set() if seen is None else seen
    for held in gc.get_referents(value):
        if id(held) in seen or isinstance(held, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            yield type(value).__name__, held
        else:
            yield from tensors_in(held, seen)


def as_on_gpus(patch: pytest.MonkeyPatch) -> None:
    """A machine whose CPU passes for a GPU: no kernel of CPUs, and those of Triton."""
    for module in (linear, packed_linear):
        patch.setattr(module, "runs", lambda device: True)
    patch.setattr(packed_linear, "has_float8", lambda device: True)
    for weight in packed_weights.PACKABLE:
        patch.setattr(weight, "blocks", lambda self: None)
    for kernel in (CpuLinear, Int8Linear, TrellisLinear, OneDnnLinear):
        patch.setattr(kernel, "refuses", lambda *given: "it is for CPUs")


def test_weights_are_those_of_the_same_files_and_settings(tmp_path: Path) -> None:
    """But for the names, roles and addresses of workers."""
    (tmp_path / "config.json").write_text("{}")
    config = Config(model=str(tmp_path), device="cpu")
    key = key_of(config, tmp_path, ())
    other = {"name": "decode-2", "role": "decode"}
    assert key_of(config.model_copy(update=other), tmp_path, ()) == key
    assert key_of(config.model_copy(update={"dtype": "float16"}), tmp_path, ()) != key
    assert key_of(config, tmp_path, (tmp_path / "config.json",)) != key
    (tmp_path / "config.json").write_text("{} ")
    assert key_of(config, tmp_path, ()) != key
