"""Checkpoints with KV scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.kv_codes import CODES, SCALE_BYTES
from baton_worker.layers.attention import gqa
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

CPU = torch.device("cpu")
TEXT = torch.randint(2, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
ROOMY = 8 / 448
"""A scale with which no key or value of these models is cut off."""


def scale(layer: int, what: str) -> float:
    """All different, so that none can be mistaken for another."""
    return ROOMY * (1 + layer / 8 + (what == "v") / 16)


def calibrated(folder: Path, name: str = "LlamaForCausalLM", **changes: Any) -> Path:
    """A tiny checkpoint with scales, some of them changed or (None) left out."""
    tiny_models.save_checkpoint(folder, name)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "config_groups": {},
        "kv_cache_scheme": SCHEME,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for what in ("k", "v"):
            value = changes.get(f"{what}{layer}", scale(layer, what))
            if value is not None:
                key = f"model.layers.{layer}.self_attn.{what}_scale"
                tensors[key] = torch.tensor([value])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run(folder: Path, driver: Any, kind: str) -> Any:
    """A driver after one text, and its logits."""
    codes = CODES.get(kind)
    loaded = load_model(folder, BuildContext(CPU, torch.float32, codes=codes))
    made = driver(loaded, 1, codes=codes)
    return made, made.step({0: TEXT})[0]


def stored_scales(pages: torch.Tensor, table: list[int]) -> torch.Tensor:
    """Those of the text's tokens: [tokens, 2, num_kv_heads]."""
    rows = pages[table].flatten(0, 1)[: len(TEXT)]
    return rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)[..., 0]


@pytest.mark.row("F12.07")
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
@pytest.mark.parametrize("with_kernels", [True, False])
def test_every_layer_stores_with_the_scales_of_the_checkpoint(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch, name: str, with_kernels: bool
) -> None:
    if not with_kernels:
        monkeypatch.setattr(gqa, "refuses", lambda *_: "not today")
    made, _ = run(calibrated(tmp_path, name), driver, "fp8")
    for layer, pages in enumerate(made.cache.layers):
        found = stored_scales(pages, made.tables[0])
        assert (found[:, 0] == torch.tensor(scale(layer, "k"))).all()
        assert (found[:, 1] == torch.tensor(scale(layer, "v"))).all()


@pytest.mark.row("F12.07")
def test_logits_stay_close_to_those_without_codes(tmp_path: Path, driver: Any) -> None:
    calibrated(tmp_path)
    plain, coded = (run(tmp_path, driver, kind)[1] for kind in ("auto", "fp8"))
    # Random weights carry a change on as no trained model does.
    assert 0 < (coded - plain).norm() < 0.2 * plain.norm()


@pytest.mark.row("F12.07")
def test_another_kind_of_pages_leaves_the_scales_alone(tmp_path: Path, driver: Any) -> None:
    calibrated(tmp_path / "a")
    tiny_models.save_checkpoint(tmp_path / "b", "LlamaForCausalLM")
    for kind in ("auto", "int8"):
        with_scales, without = (run(tmp_path / f, driver, kind)[1] for f in ("a", "b"))
        assert torch.equal(with_scales, without)


@pytest.mark.row("F12.07")
@pytest.mark.parametrize("with_kernels", [True, False])
def test_what_is_too_large_for_a_scale_is_cut_off(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch, with_kernels: bool
) -> None:
    if not with_kernels:
        monkeypatch.setattr(gqa, "refuses", lambda *_: "not today")
    made, _ = run(calibrated(tmp_path, k0=1e-4), driver, "fp8")
    rows = made.cache.layers[0][made.tables[0]].flatten(0, 1)[: len(TEXT)]
    keys = CODES["fp8"].decode(rows[:, 0], torch.float32)
    assert keys.abs().max() == pytest.approx(448e-4) and keys.isfinite().all()


@pytest.mark.row("F12.07")
@pytest.mark.parametrize(
    ("value", "said"), [(None, "k_scale"), (0.0, "positive"), (float("nan"), "positive")]
)
def test_a_missing_or_impossible_scale_is_refused(
    tmp_path: Path, value: float | None, said: str
) -> None:
    calibrated(tmp_path, k1=value)
    with pytest.raises(ModelError, match=said):
        load_model(tmp_path, BuildContext(CPU, torch.float32, codes=CODES["fp8"]))


def test_weights_in_codes_are_still_refused(tmp_path: Path) -> None:
    calibrated(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["config_groups"] = {"group_0": {"weights": {"num_bits": 8}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="compressed-tensors"):
        load_model(tmp_path, BuildContext(CPU, torch.float32, codes=CODES["fp8"]))
