"""8-bit floats with block scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import ModelError
from baton_worker.models import load_model
from baton_worker.models.fp8 import Widen, dequantise
from tests import tiny

CPU = torch.device("cpu")
BLOCK = (16, 16)


def quantised(weight: Tensor, block: tuple[int, int] = BLOCK) -> tuple[Tensor, Tensor]:
    """Each block scaled to the largest value of the format, as checkpoints have it."""
    rows, columns = weight.shape
    a, b = block
    scales = torch.zeros(-(-rows // a), -(-columns // b))
    codes = torch.zeros(rows, columns)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            here = (slice(i * a, (i + 1) * a), slice(j * b, (j + 1) * b))
            scales[i, j] = weight[here].abs().max() / 448
            codes[here] = weight[here] / scales[i, j]
    return codes.to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize("shape", [(32, 48), (20, 17), (3, 50)])
def test_scales_are_of_blocks_even_cut_ones(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    codes, scales = quantised(weight)
    for row in range(shape[0]):
        for column in range(shape[1]):
            expected = codes[row, column].float() * scales[row // 16, column // 16]
            assert dequantise(codes, scales, BLOCK)[row, column] == expected
    torch.testing.assert_close(dequantise(codes, scales, BLOCK), weight, atol=0.1, rtol=0.07)


@pytest.mark.parametrize("scale_first", [True, False])
def test_halves_wait_for_each_other(scale_first: bool) -> None:
    codes, scales = quantised(torch.randn(16, 16))
    widen, norm = Widen(BLOCK), torch.ones(4)
    stored = [("x.weight", codes), ("x.weight_scale_inv", scales)]
    parts = [
        part
        for name, tensor in [("norm.weight", norm), *(stored[::-1] if scale_first else stored)]
        for part in widen(name, tensor)
    ]
    assert [name for name, _ in parts] == ["norm.weight", "x.weight"]
    assert parts[0][1] is norm and torch.equal(parts[1][1], dequantise(codes, scales, BLOCK))


def requantise(folder: Path, settings: dict[str, Any], skipped: dict[str, Tensor]) -> None:
    """Make the checkpoint one of 8-bit floats, in `folder`/fp8; `folder` keeps what they mean."""
    tensors, stored = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    for name, weight in list(tensors.items()):
        stored[name] = weight
        if weight.ndim == 2 and name.endswith("_proj.weight"):
            codes, scales = quantised(weight)
            stored |= {name: codes, f"{name}_scale_inv": scales}
            tensors[name] = dequantise(codes, scales, BLOCK)
    save_file(tensors, folder / "model.safetensors")
    (folder / "fp8").mkdir()
    save_file(stored | skipped, folder / "fp8" / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "fp8" / "config.json").write_text(json.dumps(config | settings))


def logits(folder: Path, driver: Any) -> Tensor:
    loaded = load_model(folder, device=CPU, dtype=torch.float32)
    return driver(loaded, 1).step({0: list(range(2, 60))})[0]


@pytest.mark.row("L03")
def test_deepseek_v3_in_8_bit_floats_with_draft_layers_that_stay_unread(
    tmp_path: Path, driver: Any
) -> None:
    tiny.save_checkpoint(tmp_path, "DeepseekV3ForCausalLM")
    settings = {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": list(BLOCK)},
        "num_nextn_predict_layers": 1,
    }
    codes, scales = quantised(torch.randn(48, 96))
    draft = "model.layers.3.eh_proj.weight"
    requantise(tmp_path, settings, {draft: codes, f"{draft}_scale_inv": scales})
    oracle = tiny.tiny_model("DeepseekV3ForCausalLM")
    oracle = type(oracle).from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = logits(tmp_path / "fp8", driver)
    with torch.inference_mode():
        expected = oracle(torch.tensor([list(range(2, 60))]), use_cache=False).logits[0]
    assert (ours - expected).abs().max() < 1e-3


def test_scales_per_tensor_are_refused(tmp_path: Path) -> None:
    tiny.save_checkpoint(tmp_path, "LlamaForCausalLM")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantised with fp8"):
        load_model(tmp_path, device=CPU, dtype=torch.float32)
