"""Weights that outlive a worker, in memory of a device double."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.kept_weights import WeightKeeper, key_of
from baton_worker.checkpoint.load import LoadedModel, load_model
from baton_worker.config import Config
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from tests.fakes.kept_device import KeptDevice, kept_device
from tests.support import tiny_models

KINDS = ("Gemma3ForCausalLM", "DeepseekV3ForCausalLM", "Qwen3NextForCausalLM")
"""Tied heads, norms with an offset, experts, latents, states."""
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
            [size] = device.driver.sizes.values()
            assert torch.equal(logits(first), expected)
            spoil(folder / "model.safetensors")
            second = load_model(folder, SITE, keeper=keeper)
            assert second.kept is not None and second.kept.as_left
            assert "the checkpoint is not read" in caplog.messages[-1]
            assert torch.equal(logits(second), expected), kind
            assert list(device.driver.sizes.values()) == [size], "once for both"
            assert second.weight_bytes == plain.weight_bytes
            keeper.drop()
            del first, second
            gc.collect()
            device.keeper.sweep()
            assert not device.driver.sizes


def test_what_is_damaged_unfinished_or_packed_is_loaded(
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
        first.kept.memory[:64] = 1
        second = load_model(folder, SITE, keeper=keeper)
        assert second.kept is not None and second.kept.whole, "as a wild write would"
        assert torch.equal(logits(second), expected)
        packed = load_model(folder, replace(SITE, quantization="int8"), keeper=keeper)
        assert packed.kept is None and "they are packed while they are loaded" in caplog.text
        device.driver.capacity = 0
        other = WeightKeeper(device.client, b"o" * 32)
        private = load_model(folder, SITE, keeper=other)
        assert private.kept is None and torch.equal(logits(private), expected)
        assert "weights of this worker do not outlive it: cuMemAlloc_v2" in caplog.text


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
