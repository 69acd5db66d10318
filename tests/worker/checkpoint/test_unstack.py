"""Stacked experts come apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.unstack import Unstack
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.kernels.mxfp4 import dequantise
from baton_worker.kernels.weight import ExpertStack
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import (
    Decoder,
    Glu,
    Head,
    Moe,
    Norm,
    Router,
    Stacked,
    TensorLayout,
)
from tests.support import moe_models, tiny_models

CPU = torch.device("cpu")
GATE_UP = ("expert_gate", "expert_up")
MOE = Moe(Router(2, 1), Glu(3))


def spec(*stacked: Stacked, renames: tuple[tuple[str, str], ...] = ()) -> Decoder:
    tensors = TensorLayout(stacked=stacked, renames=renames)
    return Decoder(4, 9, ((None, MOE), (None, Glu(3))), Norm(1e-5), Head(), tensors=tensors)


def expert(number: int, part: str, suffix: str = "weight") -> str:
    return f"model.layers.0.mlp.experts.{number}.{part}_proj.{suffix}"


def apart(decoder: Decoder, *tensors: tuple[str, Any]) -> dict[str, Any]:
    unstack = Unstack(decoder)
    return dict(part for stored in tensors for part in unstack(*stored))


def test_a_body_saved_alone_lacks_its_first_name() -> None:
    rule = Stacked("model.layers.{layer}.packed", GATE_UP)
    parts = apart(spec(rule), ("layers.0.packed", torch.zeros(2, 6, 4)), ("packed", torch.ones(1)))
    assert len(parts) == 5 and expert(1, "up") in parts and "packed" in parts


@pytest.mark.parametrize("transposed", [False, True])
def test_the_number_of_inputs_tells_the_layout(transposed: bool) -> None:
    gate, up = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    stored = torch.cat((gate, up), dim=1)
    rule = Stacked("layers.{layer}.packed", GATE_UP, inputs=4)
    shape = stored.transpose(1, 2) if transposed else stored
    found = apart(spec(rule), ("layers.0.packed", shape))
    assert torch.equal(found[expert(1, "up")], up[1])


@pytest.mark.row("F06.30")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_each_layout(transposed: bool, interleaved: bool, flat: bool) -> None:
    gate, up = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    stored = torch.cat((gate, up), dim=1)
    if interleaved:
        stored = torch.stack((gate, up), dim=2).flatten(1, 2)
    if transposed:
        stored = stored.transpose(1, 2)
    if flat:
        stored = stored.flatten(0, 1)
    rule = Stacked(
        "layers.{layer}.packed", GATE_UP, flat=flat, transposed=transposed, interleaved=interleaved
    )
    parts = apart(spec(rule), ("layers.0.packed", stored), ("other", gate))
    assert len(parts) == 5 and parts["other"] is gate
    for number in range(2):
        assert torch.equal(parts[expert(number, "gate")], gate[number])
        assert torch.equal(parts[expert(number, "up")], up[number])


def test_biases_come_apart_too() -> None:
    rule = Stacked("layers.{layer}.bias", GATE_UP, suffix="bias", interleaved=True)
    parts = apart(spec(rule), ("layers.0.bias", torch.arange(12.0).view(2, 6)))
    assert parts[expert(1, "up", "bias")].tolist() == [7.0, 9.0, 11.0]


@pytest.mark.parametrize("blocks_first", [True, False])
def test_a_quantised_tensor_waits_for_its_scales(blocks_first: bool) -> None:
    blocks = torch.randint(0, 256, (2, 4, 1, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (2, 4, 1), dtype=torch.uint8)
    rule = Stacked("layers.{layer}.b", ("expert_down",), scales="layers.{layer}.s")
    stored = [("layers.0.b", blocks), ("layers.0.s", scales)]
    parts = apart(spec(rule), *(stored if blocks_first else stored[::-1]))
    assert torch.equal(parts[expert(1, "down")].dequantise(), dequantise(blocks[1], scales[1]))


@pytest.mark.parametrize("interleaved", [False, True])
def test_quantised_experts_come_apart_as_they_are_stored(interleaved: bool) -> None:
    """What is stored transposed becomes floats: its groups run along the other axis."""
    codes, scales = torch.randn(2, 6, 32).to(torch.float8_e4m3fn), torch.rand(2, 6, 1)
    stack = ExpertStack(
        codes.shape, lambda e: Fp8Weight(codes[e], scales[e], (1, 32), Inputs(None))
    )
    rule = Stacked("layers.{layer}.packed", GATE_UP, interleaved=interleaved)
    parts = apart(spec(rule), ("layers.0.packed", stack), ("other", stack))
    floats = apart(spec(rule), ("layers.0.packed", stack.dequantise()))
    assert torch.equal(parts.pop("other"), stack.dequantise()) and parts.keys() == floats.keys()
    for name, part in parts.items():
        assert isinstance(part, Fp8Weight) and torch.equal(part.dequantise(), floats[name])
    parts = apart(spec(replace(rule, transposed=True)), ("layers.0.packed", stack))
    assert parts[expert(1, "gate")].shape == (16, 6)
    rows = slice(1, None, 2) if interleaved else slice(16, None)
    assert torch.equal(parts[expert(1, "up")], stack[1].dequantise().T[rows])


def test_rows_of_quantised_experts_lie_one_after_the_other() -> None:
    weight = Fp8Weight(
        torch.randn(12, 32).to(torch.float8_e4m3fn), torch.rand(12, 1), (1, 32), Inputs()
    )
    rule = Stacked("layers.{layer}.packed", GATE_UP, flat=True)
    parts = apart(spec(rule), ("layers.0.packed", weight))
    assert torch.equal(parts[expert(1, "up")].dequantise(), weight.dequantise()[9:])


def test_other_spellings_are_renamed_first() -> None:
    decoder = spec(renames=((r"\.router\.", ".mlp.gate."),))
    parts = apart(decoder, ("model.layers.0.router.e_score_correction_bias", torch.ones(1, 2)))
    assert [(n, t.shape) for n, t in parts.items()] == [
        ("model.layers.0.mlp.gate.e_score_correction_bias", (2,))
    ]


@pytest.mark.parametrize(("layer", "count"), [(0, 3), (1, 2)])
def test_another_number_of_experts_is_refused(layer: int, count: int) -> None:
    rule = Stacked("layers.{layer}.packed", GATE_UP)
    with pytest.raises(ModelError, match=rf"holds {count} experts.*wants {2 - 2 * layer}"):
        apart(spec(rule), (f"layers.{layer}.packed", torch.zeros(count, 6, 4)))


def logits(folder: Path, driver: Any, kernel: str = "auto") -> Tensor:
    experts = ExpertKernelSelector(kernel)
    loaded = load_model(folder, BuildContext(CPU, torch.float32, experts=experts))
    return driver(loaded, 1).step({0: list(range(2, 30))})[0]


@pytest.mark.row("F06.30")
@pytest.mark.parametrize("architecture", sorted(moe_models.TRAITS))
def test_a_checkpoint_saved_fused_is_the_same_model(
    architecture: str, tmp_path: Path, driver: Any
) -> None:
    model = tiny_models.tiny_model(architecture)
    for name, original in (("one", True), ("other", False)):
        model.save_pretrained(tmp_path / name, save_original_format=original)
    assert torch.equal(logits(tmp_path / "one", driver), logits(tmp_path / "other", driver))


def quantised(folder: Path) -> None:
    """Replace the expert weights of a gpt-oss checkpoint by MXFP4, and by what that means."""
    file = folder / "model.safetensors"
    tensors, exact = load_file(file), dict[str, Tensor]()
    packed = dict(tensors)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = packed.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        scales = torch.randint(122, 126, shape, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        exact[name] = dequantise(blocks, scales).transpose(1, 2).contiguous()
    save_file(tensors | exact, file)
    other = folder.parent / "mxfp4"
    other.mkdir()
    save_file(packed, other / "model.safetensors")
    config = (folder / "config.json").read_text().rstrip().removesuffix("}")
    extra = ', "quantization_config": {"quant_method": "mxfp4"}}'
    (other / "config.json").write_text(config.rstrip() + extra)


@pytest.mark.row("M06", "F03.19")
def test_mxfp4_experts_are_read_as_what_they_mean(tmp_path: Path, driver: Any) -> None:
    plain = tmp_path / "plain"
    tiny_models.save_checkpoint(plain, "GptOssForCausalLM", hidden_size=64, intermediate_size=96)
    quantised(plain)
    found, expected = (logits(tmp_path / name, driver, "loop") for name in ("mxfp4", "plain"))
    assert torch.equal(found, expected)
    packed = logits(tmp_path / "mxfp4", driver)
    assert (packed - expected).abs().max() < 1e-3


def test_only_architectures_with_a_rule_for_mxfp4_read_it(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "MixtralForCausalLM")
    config = tmp_path / "config.json"
    text = config.read_text().rstrip().removesuffix("}").rstrip()
    config.write_text(text + ', "quantization_config": {"quant_method": "mxfp4"}}')
    with pytest.raises(ModelError, match="quantised with mxfp4"):
        load_model(tmp_path, BuildContext(CPU, torch.float32))


def test_rules_are_data() -> None:
    rule = Stacked("layers.{layer}.packed", GATE_UP)
    assert replace(rule) == rule and hash(rule)
