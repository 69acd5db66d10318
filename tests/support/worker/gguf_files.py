"""GGUF files made on the spot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

# Rows must be whole blocks: 32 values, or 256 for the K types.
SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4}


PLAIN = {"attention_bias": False, "mlp_bias": False, "rope_parameters": None}


WRITABLE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]


K_TYPES = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]


TABLE_TYPES = [Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS]
TABLE_TYPES += [Type.IQ3_S, Type.IQ4_NL, Type.IQ4_XS, Type.TQ1_0, Type.TQ2_0]


PERMUTED = ("llama", "granite", "arcee")
"""Architectures whose query and key rows llama.cpp's converter interleaves."""


EXTRA = {
    "num_experts": "add_expert_count",
    "num_local_experts": "add_expert_count",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "attention_multiplier": "add_attention_scale",
    "logits_scaling": "add_logit_scale",
    "logit_scale": "add_logit_scale",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "sliding_window": "add_sliding_window",
}
"""Field of a config, and the method of the writer that stores it."""


def permute(rows: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """`permute` of llama.cpp's convert_hf_to_gguf.py."""
    split = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def blocks(values: np.ndarray[Any, Any], kind: Type) -> np.ndarray[Any, Any]:
    """Values as GGUF stores them; types that Python cannot quantise as random small bytes."""
    if kind in (*K_TYPES, *TABLE_TYPES):
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        shape = (values.shape[0], values.shape[1] // size * num_bytes)
        return np.random.default_rng(0).integers(0, 60, shape, dtype=np.uint8)
    return gguf.quants.quantize(values, kind)


class Writer:
    """Writes a transformers model as GGUF, and rounds the model to what was written."""

    def __init__(self, path: Path, arch: str, oracle: Any) -> None:
        self.path, self.arch, self.oracle, self.c = path, arch, oracle, oracle.config
        self.file = gguf.GGUFWriter(path, arch)
        kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
        self.names = gguf.get_tensor_name_map(kind, self.c.num_hidden_layers)

    def metadata(self) -> None:
        f, c = self.file, self.c
        f.add_block_count(c.num_hidden_layers)
        f.add_context_length(c.max_position_embeddings)
        f.add_embedding_length(c.hidden_size)
        f.add_feed_forward_length(c.intermediate_size)
        f.add_head_count(c.num_attention_heads)
        f.add_head_count_kv(c.num_key_value_heads)
        if hasattr(c, "rms_norm_eps"):
            f.add_layer_norm_rms_eps(c.rms_norm_eps)
        rope = c.rope_parameters.get("full_attention", c.rope_parameters)
        f.add_rope_freq_base(rope["rope_theta"])
        if "partial_rotary_factor" in rope:
            head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
            f.add_rope_dimension_count(int(head * rope["partial_rotary_factor"]))
        if rope["rope_type"] == "linear" and self.arch == "gemma3":
            f.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            f.add_rope_scaling_factor(rope["factor"])
            f.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
        f.add_eos_token_id(1)
        if getattr(c, "head_dim", None):
            f.add_key_length(c.head_dim)
        for field in ("norm_epsilon", "layer_norm_eps", "norm_eps"):
            if getattr(c, field, None):
                f.add_layer_norm_eps(getattr(c, field))
        for field, add in EXTRA.items():
            if getattr(c, field, None) is not None:
                getattr(f, add)(getattr(c, field))

    def tensor(self, name: str, parameter: torch.Tensor, kind: Type) -> None:
        values = parameter.detach().numpy().copy()
        if self.arch in PERMUTED and ".q_proj." in name:
            values = permute(values, self.c.num_attention_heads)
        if self.arch in PERMUTED and ".k_proj." in name:
            values = permute(values, self.c.num_key_value_heads)
        if self.arch.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
            values += 1
        if ".experts.gate_up_proj" in name:
            written = self.experts(name, np.split(values, 2, axis=1), ("gate", "up"), kind)
            parameter.data.copy_(written)
            return
        if ".experts.down_proj" in name:
            parameter.data.copy_(self.experts(name, [values], ("down",), kind))
            return
        stored = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1 or kind is Type.F32:
            self.file.add_tensor(stored, values)
            return
        data = blocks(values, kind)
        self.file.add_tensor(stored, data, raw_dtype=kind)
        assert ".q_proj." not in name or kind in WRITABLE
        rounded = gguf.quants.dequantize(blocks(parameter.detach().numpy(), kind), kind)
        parameter.data.copy_(torch.from_numpy(rounded.copy()))

    def experts(
        self, name: str, parts: list[np.ndarray[Any, Any]], roles: Iterable[str], kind: Type
    ) -> torch.Tensor:
        """One tensor per role, of all experts; returns what they mean, in the layout of `name`."""
        layer, meant = name.split(".")[2], list[torch.Tensor]()
        for part, role in zip(parts, roles, strict=True):
            rows = np.ascontiguousarray(part).reshape(-1, part.shape[-1])
            data = rows if kind is Type.F32 else blocks(rows, kind)
            stored = f"blk.{layer}.ffn_{role}_exps.weight"
            shaped = data.reshape(*part.shape[:2], -1)
            self.file.add_tensor(stored, shaped, raw_dtype=None if kind is Type.F32 else kind)
            meant.append(torch.from_numpy(gguf.quants.dequantize(data, kind)).view(part.shape))
        return torch.cat(meant, 1)

    def close(self) -> Path:
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()
        return self.path


def write(path: Path, arch: str, oracle: Any, kinds: dict[str, Type] | Type) -> Path:
    writer = Writer(path, arch, oracle)
    writer.metadata()
    for name, parameter in oracle.named_parameters():
        kind = kinds if isinstance(kinds, Type) else kinds.get(name, Type.F32)
        writer.tensor(name, parameter, kind)
    return writer.close()
