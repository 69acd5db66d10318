"""Mixtures of experts whose weights stay as their checkpoint stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.mxfp4 import dequantise
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.moe import Experts
from tests.fakes.threaded_ranks import Threaded, together
from tests.support import quantized_checkpoints as written
from tests.support import tiny_models
from tests.support.worker import gguf_files

pytestmark = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)
SITE = BuildContext(torch.device("cpu"), torch.float32)
TOKENS = list(range(2, 40))
SIZES = written.SIZES | {"head_dim": 16, "moe_intermediate_size": 128}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT8 = INT8 | {"type": "float"}
FLOAT4 = INT4 | {"type": "float", "group_size": 16}


def compressed(form: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }


@dataclass(frozen=True)
class Scheme:
    """A `quantization_config`, how it rounds, and the bits of a weight as it is held."""

    settings: dict[str, Any]
    method: written.Method
    bits: float


SCHEMES = {
    "gptq": Scheme({"quant_method": "gptq", "bits": 4, "group_size": 32}, written.gptq(), 4.5),
    "gptq-zeros": Scheme(
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        written.gptq(symmetric=False),
        4.75,
    ),
    "awq": Scheme({"quant_method": "awq", "bits": 4, "version": "gemm"}, written.awq(), 4.75),
    "w4a16": Scheme(compressed("pack-quantized", INT4), written.packed(), 4.5),
    "w8a8": Scheme(compressed("int-quantized", INT8), written.int8(), 8.5),
    "fp8": Scheme(
        {"quant_method": "fp8", "activation_scheme": "static"},
        written.fp8(static="input_scale"),
        9,
    ),
    "fp8-block": Scheme(
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        written.fp8((32, 32), scale="weight_scale_inv"),
        9,
    ),
    "fp8-channel": Scheme(compressed("float-quantized", FLOAT8), written.fp8((1, 0)), 9),
    "nvfp4": Scheme(
        compressed("nvfp4-pack-quantized", FLOAT4),
        written.nvfp4("weight_global_scale", codes="weight_packed", inverse=True),
        5,
    ),
    "modelopt-fp8": Scheme(
        {"quant_method": "modelopt", "quant_algo": "FP8"}, written.fp8(static="input_scale"), 9
    ),
    "modelopt-nvfp4": Scheme(
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        written.nvfp4("weight_scale_2", codes="weight", inverse=False),
        5,
    ),
}
"""8-bit floats have float scales for 32 of them: four bytes that a checkpoint stores less often."""


def of_experts(name: str) -> bool:
    return ".experts." in name


def save(folder: Path, scheme: Scheme) -> Any:
    """A checkpoint whose experts are quantised; the model of the floats that they mean."""
    return written.save(
        folder,
        "Qwen3MoeForCausalLM",
        scheme.settings,
        scheme.method,
        chosen=of_experts,
        **SIZES,
    )


def logits(loaded: LoadedModel, driver: Any) -> Tensor:
    run = driver(loaded, 1)
    return torch.cat([run.step({0: TOKENS})[0], run.step({0: [7]})[0]])


def expert_layers(loaded: LoadedModel) -> list[Experts]:
    return [layer for layer in loaded.model.layers() if isinstance(layer, Experts)]


def expert_bits(loaded: LoadedModel, weights: int) -> float:
    """Bits of each of so many weights of experts, as they are held."""
    return sum(layer.weight_bytes for layer in expert_layers(loaded)) * 8 / weights


def expert_weights(oracle: Any) -> int:
    return sum(p.numel() for name, p in oracle.named_parameters() if of_experts(name))


@pytest.mark.row("F03.17")
@pytest.mark.parametrize("name", SCHEMES)
def test_packed_experts_answer_as_their_floats(tmp_path: Path, driver: Any, name: str) -> None:
    scheme = SCHEMES[name]
    oracle = save(tmp_path, scheme)
    loaded = written.answers_alike(tmp_path, oracle, driver)
    held = expert_bits(loaded, expert_weights(oracle))
    assert scheme.bits <= held < 1.1 * scheme.bits


@pytest.mark.parametrize("name", SCHEMES)
def test_each_rank_holds_its_part_packed(tmp_path: Path, driver: Any, name: str) -> None:
    """A part of every expert, or some experts as they are."""
    scheme = SCHEMES[name]
    oracle = save(tmp_path, scheme)
    expected = logits(load_model(tmp_path, SITE), driver)

    def part(ranks: Threaded, experts: str | None) -> tuple[Tensor, float]:
        loaded = load_model(tmp_path, SITE, split=ModelSplit(ranks, experts=experts))
        return logits(loaded, driver), expert_bits(loaded, expert_weights(oracle) // 2)

    for experts in (None, "linear"):
        for found, held in together(2, partial(part, experts=experts)):
            assert (found - expected).abs().max() < 1e-4
            assert scheme.bits <= held < 1.15 * scheme.bits


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_what_is_packed_is_not_rounded_again(tmp_path: Path, driver: Any, quantize: Any) -> None:
    scheme = SCHEMES["gptq"]
    oracle = save(tmp_path, scheme)
    plain = load_model(tmp_path, SITE)
    rounded = load_model(tmp_path, replace(SITE, quantization=quantize))
    assert rounded.weight_bytes < plain.weight_bytes
    weights = expert_weights(oracle)
    assert expert_bits(rounded, weights) == expert_bits(plain, weights)
    x = torch.randn(5, SIZES["hidden_size"], generator=torch.Generator().manual_seed(0))
    chosen, weight = torch.arange(10).view(5, 2) % 8, torch.rand(5, 2)
    for mine, other in zip(expert_layers(rounded), expert_layers(plain), strict=True):
        assert mine._kernel is not None and other._kernel is not None
        assert torch.equal(mine._kernel(x, chosen, weight), other._kernel(x, chosen, weight))


def test_a_kernel_of_floats_that_is_asked_for_gets_floats(tmp_path: Path, driver: Any) -> None:
    oracle = save(tmp_path, SCHEMES["awq"])
    kernels = type(SITE.experts)("loop")
    loaded = load_model(tmp_path, BuildContext(SITE.device, SITE.dtype, experts=kernels))
    assert expert_bits(loaded, expert_weights(oracle)) == 32
    packed = load_model(tmp_path, SITE)
    difference = logits(loaded, driver) - logits(packed, driver)
    assert difference.abs().max() < 1e-3


def test_an_expert_with_a_gate_in_floats_is_floats(tmp_path: Path, driver: Any) -> None:
    """One product of one expert; all others stay packed."""
    scheme, left = SCHEMES["gptq"], "layers.2.mlp.experts.3.gate_proj.weight"
    oracle = written.save(
        tmp_path,
        "Qwen3MoeForCausalLM",
        scheme.settings,
        scheme.method,
        chosen=lambda name: of_experts(name) and not name.endswith(left),
        **SIZES,
    )
    loaded = written.answers_alike(tmp_path, oracle, driver)
    weights, layers = expert_weights(oracle), len(expert_layers(loaded))
    floats = 2 * SIZES["hidden_size"] * SIZES["moe_intermediate_size"]
    held = (1 - floats / weights) * scheme.bits + floats / weights * 32
    assert layers > 1 and held <= expert_bits(loaded, weights) < 1.1 * held


def test_blocks_that_would_be_torn_apart_are_refused(tmp_path: Path, driver: Any) -> None:
    sizes = SIZES | {"moe_intermediate_size": 32}
    scheme = SCHEMES["gptq"]
    written.save(
        tmp_path,
        "Qwen3MoeForCausalLM",
        scheme.settings,
        scheme.method,
        chosen=of_experts,
        **sizes,
    )
    with pytest.raises(SettingsError, match=r"down_proj\.weight is stored in blocks of 32 col"):
        together(2, lambda ranks: load_model(tmp_path, SITE, split=ModelSplit(ranks)))
    expected = logits(load_model(tmp_path, SITE), driver)
    for found in together(
        2,
        lambda ranks: logits(
            load_model(tmp_path, SITE, split=ModelSplit(ranks, experts="linear")), driver
        ),
    ):
        assert (found - expected).abs().max() < 1e-4


def as_mxfp4(folder: Path, oracle: Any) -> Path:
    """The experts of a gpt-oss checkpoint in MXFP4; the model then means what they mean."""
    tensors = load_file(folder / "model.safetensors")
    for name, parameter in oracle.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        codes = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        scales = torch.randint(118, 122, shape, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": codes, f"{name}_scales": scales}
        parameter.data.copy_(dequantise(codes, scales).transpose(1, 2))
    written.add(folder, {}, quantization_config={"quant_method": "mxfp4"})
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.row("M06", "F03.19")
@pytest.mark.parametrize("experts", [None, "linear"])
def test_mxfp4_stays_packed(tmp_path: Path, driver: Any, experts: str | None) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2}
    torch.manual_seed(0)
    oracle = tiny_models.save_checkpoint(tmp_path, "GptOssForCausalLM", **sizes)
    path = as_mxfp4(tmp_path, oracle)
    loaded = written.answers_alike(path, oracle, driver)
    weights = sum(
        p.numel()
        for name, p in oracle.named_parameters()
        if name.endswith(("gate_up_proj", "down_proj"))
    )
    assert 4.25 <= expert_bits(loaded, weights) < 4.6
    expected = logits(loaded, driver)

    def part(ranks: Threaded) -> tuple[Tensor, float]:
        mine = load_model(path, SITE, split=ModelSplit(ranks, experts=experts))
        return logits(mine, driver), expert_bits(mine, weights // 2)

    for found, held in together(2, part):
        assert (found - expected).abs().max() < 1e-4 and 4.25 <= held < 4.6


@pytest.mark.row("F06.30")
@pytest.mark.parametrize("transposed", [False, True])
def test_stacked_8_bit_floats_stay_packed(tmp_path: Path, driver: Any, transposed: bool) -> None:
    """All experts in one tensor, with scales of its name; what is transposed becomes floats."""
    architecture = "Llama4ForCausalLM" if transposed else "Qwen3MoeForCausalLM"
    oracle = tiny_models.tiny_model(architecture, **SIZES)
    oracle.save_pretrained(tmp_path, save_original_format=False)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, parameter in oracle.named_parameters():
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            each = [written.fp8((32, 32))(expert.float()) for expert in tensors[name]]
            tensors[name] = torch.stack([stored["weight"] for stored, _ in each])
            scales = [stored["weight_scale"] for stored, _ in each]
            tensors[f"{name}_scale_inv"] = torch.stack(scales)
            parameter.data.copy_(torch.stack([meant for _, meant in each]))
    settings = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    written.add(tmp_path, {}, quantization_config=settings)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = written.answers_alike(tmp_path, oracle, driver)
    bits = expert_bits(loaded, expert_weights(oracle))
    assert bits == 32 if transposed else 9 <= bits < 10


@pytest.mark.row("F03.14")
@pytest.mark.parametrize(
    ("kind", "bits"),
    [(Type.Q8_0, 8.5), (Type.Q4_0, 4.5), (Type.Q4_1, 5), (Type.Q4_K, 4.625), (Type.Q6_K, 6.5625)],
    ids=lambda value: value.name if isinstance(value, Type) else "",
)
def test_experts_of_gguf_stay_packed(tmp_path: Path, driver: Any, kind: Type, bits: float) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 256}
    sizes |= {"num_attention_heads": 4}
    sizes |= {"head_dim": 64, "num_key_value_heads": 2}
    oracle = tiny_models.tiny_model(
        "Qwen3MoeForCausalLM", **sizes, attention_bias=False, mlp_only_layers=[]
    )
    kinds = {name: kind for name, _ in oracle.named_parameters() if of_experts(name)}
    path = gguf_files.write(tmp_path / "tiny.gguf", "qwen3moe", oracle, kinds)
    loaded = written.answers_alike(path, oracle, driver)
    assert bits <= expert_bits(loaded, expert_weights(oracle)) < 1.1 * bits
