"""A case of every scheme of quantised checkpoints, and a tiny model with a matrix in every place:
linear layers, the embedding table, the head and experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tests.support import quantized_checkpoints as written
from tests.support.trellis_codes import exl3


class Case(NamedTuple):
    """A `quantization_config`, how it rounds, and the most bits of a weight of the head."""

    settings: dict[str, Any]
    method: written.Method
    bits: float


def compressed(form: str, number: int = 4, kind: str = "int", **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": number, "type": kind, "symmetric": True, "strategy": "group", **weights}
    group = {"targets": ["Linear"], "weights": scheme}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }


def four(kind: str, nested: bool = False) -> dict[str, Any]:
    named = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, **named}


def of_gptq(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, **more}


FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK = {"quant_method": "quark", "exclude": []}
NVFP4 = written.nvfp4("weight_scale_2", codes="weight", inverse=False)
PACKED_NVFP4 = written.nvfp4("weight_global_scale", codes="weight_packed", inverse=True)
FLOATS = 32
CASES = {
    **{f"gptq-{b}": Case(of_gptq(b), written.gptq(b), 4.5 if b < 8 else 8.5) for b in (3, 4, 8)},
    "gptq-zeros": Case(of_gptq(4), written.gptq(symmetric=False), 4.75),
    "gptq-order": Case(of_gptq(4, desc_act=True), written.gptq(act_order=True), FLOATS),
    "marlin": Case({"quant_method": "marlin", "group_size": 32}, written.marlin(), 4.5),
    "awq": Case({"quant_method": "awq", "bits": 4, "version": "gemm"}, written.awq(), 4.75),
    "fp8": Case({"quant_method": "fp8"}, written.fp8(), 9),
    "fp8-block": Case(
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        written.fp8((32, 32), scale="weight_scale_inv"),
        9,
    ),
    "w4a16": Case(compressed("pack-quantized", group_size=32), written.packed(), 4.5),
    "w8a8": Case(compressed("int-quantized", 8, strategy="channel"), written.int8(), 8.5),
    "float8": Case(
        compressed("float-quantized", 8, "float", strategy="channel"), written.fp8((1, 0)), 9
    ),
    "nvfp4": Case(compressed("nvfp4-pack-quantized", 4, "float"), PACKED_NVFP4, 5),
    "modelopt-fp8": Case(
        {"quant_method": "modelopt", "quant_algo": "FP8"}, written.fp8(static="input_scale"), 9
    ),
    "modelopt-nvfp4": Case({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NVFP4, 5),
    "modelopt-mxfp8": Case({"quant_method": "modelopt", "quant_algo": "MXFP8"}, written.mxfp8(), 9),
    "petit": Case({"quant_method": "petit_nvfp4", "quant_algo": "NVFP4"}, NVFP4, 5),
    "mxfp8": Case({"quant_method": "mxfp8"}, written.mxfp8(), 9),
    "nf4": Case(four("nf4"), written.four_bits("nf4"), 4.5),
    "nf4-nested": Case(four("nf4", True), written.four_bits("nf4", nested=True), 4.5),
    "fp4": Case(four("fp4"), written.four_bits("fp4"), 4.5),
    "llm-int8": Case(
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        written.by_rows("weight", "SCB", most=127.0),
        9,
    ),
    "quark-fp8": Case(
        QUARK | {"global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}},
        written.fp8(),
        9,
    ),
    "quark-mxfp4": Case(QUARK | {"global_quant_config": {"weight": FP4}}, written.mxfp4(), 4.25),
    "fp-quant": Case({"quant_method": "fp_quant"}, written.fp_quant("mxfp4"), 6),
    "exl3": Case({"quant_method": "exl3", "codebook": "mul1"}, exl3(2), 2.5),
}
"""Tiny heads carry the 32 x 32 matrix of a rotation beside them."""
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "num_experts": 2,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
    "tie_word_embeddings": False,
}
WIDE = {"hidden_size": 128, "head_dim": 32, "moe_intermediate_size": 128, "vocab_size": 128}
"""Of the scheme whose blocks are 128 by 128."""
PLACES = ("_proj.weight", "embed_tokens.weight", "lm_head.weight")


def save(folder: Path, name: str) -> Any:
    """Save the model of a case; returns the transformers model of what it means."""
    return written.save(
        folder,
        "Qwen3MoeForCausalLM",
        CASES[name].settings,
        CASES[name].method,
        chosen=lambda tensor: tensor.endswith(PLACES),
        **SIZES | (WIDE if name == "exl3" else {}),
    )
