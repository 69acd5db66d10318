"""A checkpoint folder as a GGUF file: what llama.cpp's convert_hf_to_gguf.py does to the names and
tensors of each architecture, and the metadata that it writes, with the reference writer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import Tensor

from baton_worker.checkpoint.gguf.families import FAMILIES

Tensors: TypeAlias = dict[str, Tensor]
Config: TypeAlias = SimpleNamespace
Step: TypeAlias = Callable[[Tensors, Config], Tensors]

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_ROLES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def field(c: Config, *names: str) -> Any:
    """The first of these fields that the config has."""
    return next((getattr(c, n) for n in names if getattr(c, n, None) is not None), None)


def heads(c: Config) -> int:
    count: int = field(c, "num_attention_heads", "n_head", "n_heads")
    return count


def kv_heads(c: Config) -> int:
    count: int | None = field(c, "num_key_value_heads", "n_head_kv", "num_kv_heads")
    return count or heads(c)


def hidden(c: Config) -> int:
    size: int = field(c, "hidden_size", "n_embd", "d_model")
    return size


def interleave(rows: Tensor, count: int) -> Tensor:
    """`permute`: the halves of each head, row by row in turn."""
    return rows.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)


def permuted(tensors: Tensors, c: Config) -> Tensors:
    """Rows of q and k, as the rotation of ggml's NORM kind wants them."""
    counts = {"q_proj": heads(c), "k_proj": kv_heads(c)}
    return {
        name: interleave(t, counts[part]) if (part := name.split(".")[-2]) in counts else t
        for name, t in tensors.items()
    }


def stacked(tensors: Tensors, c: Config) -> Tensors:
    """One tensor for all experts of a layer."""
    found = [(name, match) for name in tensors if (match := _EXPERT.fullmatch(name))]
    left = {name: t for name, t in tensors.items() if not _EXPERT.fullmatch(name)}
    groups = dict[str, dict[int, Tensor]]()
    for name, match in found:
        stem, expert, part = match.groups()
        groups.setdefault(f"{stem}.{part}.weight", {})[int(expert)] = tensors[name]
    return left | {n: torch.stack([g[e] for e in sorted(g)]) for n, g in groups.items()}


def fused_experts(tensors: Tensors, c: Config) -> Tensors:
    """`--fuse-gate-up-exps`: the rows of each expert's gate, then those of its up-projection."""
    left = Tensors()
    for name, t in tensors.items():
        if name.endswith("experts.gate_proj.weight"):
            up = tensors[name.replace("gate_proj", "up_proj")]
            left[name.replace("gate_proj", "gate_up_proj")] = torch.cat((t, up), dim=1)
        elif not name.endswith("experts.up_proj.weight"):
            left[name] = t
    return left


def fused_qkv(tensors: Tensors, c: Config) -> Tensors:
    """`--fuse-qkv`: one projection of queries, keys and values."""
    left = Tensors()
    for name, t in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"]
            left[name.replace("self_attn.q_proj", "self_attn.W_pack")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            left[name] = t
    return left


def grouped_qkv(tensors: Tensors, c: Config, groups: int, parts: tuple[int, int]) -> Tensors:
    """Rows of q, k and v that alternate by group, one after the other: `parts` of q and of each
    of k and v."""
    left = dict(tensors)
    for name, t in tensors.items():
        if ".query_key_value." in name:
            share = t.unflatten(0, (groups, sum(parts) + parts[1], -1))
            split = torch.split(share, [parts[0], parts[1], parts[1]], dim=1)
            left[name] = torch.cat([part.flatten(0, 2) for part in split])
    return left


def per_head_qkv(tensors: Tensors, c: Config) -> Tensors:
    return grouped_qkv(tensors, c, heads(c), (1, 1))


def falcon_qkv(tensors: Tensors, c: Config) -> Tensors:
    groups = kv_heads(c)
    return grouped_qkv(tensors, c, groups, (heads(c) // groups, 1))


def conv1d(tensors: Tensors, c: Config) -> Tensors:
    """GPT-2's [in, out] turned around."""
    names = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {n: t.T if n.endswith(names) else t for n, t in tensors.items()}


def split_latents(tensors: Tensors, c: Config) -> Tensors:
    """Keys and values up in two tensors, that of the keys turned around."""
    left = dict(tensors)
    for name, t in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            both = t.unflatten(0, (heads(c), -1))
            keys, values = torch.split(both, [c.qk_nope_head_dim, c.v_head_dim], dim=1)
            left[name.replace("kv_b", "k_b")] = keys.transpose(1, 2)
            left[name.replace("kv_b", "v_b")] = values
            del left[name]
    return left


def corrections(tensors: Tensors, c: Config) -> Tensors:
    """The vector that corrects a router is a bias."""
    left = Tensors()
    for name, t in tensors.items():
        name = re.sub(r"(e_score_correction)_bias$", r"\1.bias", name)
        name = re.sub(r"(router|expert)_bias$", r"\1_bias.bias", name)
        left[name] = t
    return left


def split_rows(pairs: dict[str, tuple[str, ...]]) -> Step:
    """Tensors that hold several: after the first axis but one of experts."""

    def step(tensors: Tensors, c: Config) -> Tensors:
        left = Tensors()
        for name, t in tensors.items():
            key = next((key for key in pairs if key in name), None)
            if key is None:
                left[name] = t
                continue
            for new, part in zip(pairs[key], t.chunk(len(pairs[key]), dim=t.ndim - 2), strict=True):
                left[name.replace(key, new)] = part
        return left

    return step


def internlm2(tensors: Tensors, c: Config) -> Tensors:
    left = Tensors()
    group = heads(c) // kv_heads(c)
    for name, t in tensors.items():
        if ".attention.wqkv." not in name:
            left[name] = t
            continue
        share = t.unflatten(0, (kv_heads(c), group + 2, -1))
        stem = name.replace("attention.wqkv", "self_attn.{}_proj")
        q, k, v = torch.split(share, [group, 1, 1], dim=1)
        left[stem.format("q")] = interleave(q.flatten(0, 2), heads(c))
        left[stem.format("k")] = interleave(k.flatten(0, 2), kv_heads(c))
        left[stem.format("v")] = v.flatten(0, 2)
    return left


def baichuan(tensors: Tensors, c: Config) -> Tensors:
    left = Tensors()
    for name, t in tensors.items():
        parts = t.chunk(3) if ".W_pack." in name else [t]
        names = [name.replace("W_pack", f"{p}_proj") for p in "qkv"] if len(parts) > 1 else [name]
        left |= dict(zip(names, parts, strict=True))
    return permuted(left, c)


def deci(tensors: Tensors, c: Config) -> Tensors:
    left = dict(tensors)
    for name, t in tensors.items():
        if match := re.match(r"model\.layers\.(\d+)\.self_attn\.([qk])_proj", name):
            block = c.block_configs[int(match[1])].attention
            group = block.n_heads_in_group if match[2] == "k" else 1
            left[name] = interleave(t, heads(c) // group)
    return left


def dbrx(tensors: Tensors, c: Config) -> Tensors:
    left = Tensors()
    count = c.ffn_config.moe_num_experts
    for name, t in tensors.items():
        if ".experts.mlp." in name:
            t = t.unflatten(0, (count, -1))
            t = t.transpose(1, 2) if name.endswith("w2") else t
            name += ".weight"
        left[name] = t
    return left


def gpt_oss(tensors: Tensors, c: Config) -> Tensors:
    left = Tensors()
    for name, t in tensors.items():
        kind = "bias" if name.endswith("_bias") else "weight"
        stem = name.removesuffix("_bias")
        t = t.transpose(1, 2) if ".experts." in name and kind == "weight" else t
        if stem.endswith("gate_up_proj"):
            left[f"{stem.replace('gate_up', 'gate')}.{kind}"] = t[:, ::2]
            left[f"{stem.replace('gate_up', 'up')}.{kind}"] = t[:, 1::2]
        elif ".experts." in name:
            left[f"{stem}.{kind}"] = t
        else:
            left[f"{name}.weight" if name.endswith("sinks") else name] = t
    return left


def llama4(tensors: Tensors, c: Config) -> Tensors:
    left = Tensors()
    for name, t in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = t.transpose(1, 2).chunk(2, dim=1)
            left[f"{name.replace('gate_up', 'gate')}.weight"] = gate
            left[f"{name.replace('gate_up', 'up')}.weight"] = up
        elif name.endswith("experts.down_proj"):
            left[f"{name}.weight"] = t.transpose(1, 2)
        else:
            left[name] = t
    return left


def norms_plus_one(tensors: Tensors, c: Config) -> Tensors:
    return {n: t + 1 if n.endswith("norm.weight") else t for n, t in tensors.items()}


def bare_body(tensors: Tensors, c: Config) -> Tensors:
    """BLOOM's and ChatGLM's maps know the names of the body alone."""
    return {n.removeprefix("transformer."): t for n, t in tensors.items()}


def chatglm(tensors: Tensors, c: Config) -> Tensors:
    """What follows from the config is left out."""
    return bare_body({n: t for n, t in tensors.items() if not n.endswith("inv_freq")}, c)


def state_spaces(tensors: Tensors, c: Config) -> Tensors:
    """Rates in place of their logarithms; convolutions without the axis of groups."""
    left = Tensors()
    for name, t in tensors.items():
        t = -t.exp() if name.endswith("A_log") else t
        left[name] = t.squeeze(1) if name.endswith("conv1d.weight") else t
    return left


def grouped_scans(tensors: Tensors, c: Config) -> Tensors:
    """Mamba-2: rates and skips as columns, norms as one row per group."""
    left = Tensors()
    groups = field(c, "n_groups", "mamba_n_groups")
    for name, t in state_spaces(tensors, c).items():
        if name.endswith((".A_log", ".D")):
            t = t.unsqueeze(1)
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            t = t.unflatten(0, (groups, -1))
        left[name.replace(".dt_bias", ".dt_proj.bias")] = t
    return left


def ungrouped_deltas(tensors: Tensors, c: Config) -> Tensors:
    """Queries, keys and values one after the other, and the gate alone."""
    left, groups = Tensors(), c.linear_num_key_heads
    values = c.linear_num_value_heads // groups * c.linear_value_head_dim
    sizes = [c.linear_key_head_dim] * 2 + [values] * 2
    for name, t in tensors.items():
        if "in_proj_qkvz" in name:
            parts = torch.split(t.unflatten(0, (groups, -1)), sizes, dim=1)
            query, key, value, gate = (part.flatten(0, 1) for part in parts)
            left[name.replace("qkvz", "qkv")] = torch.cat((query, key, value))
            left[name.replace("qkvz", "z")] = gate
        else:
            left[name] = t
    return left


def tiled_deltas(tensors: Tensors, c: Config) -> Tensors:
    """The first value head of every key head, then the second ones."""
    groups, size = c.linear_num_key_heads, c.linear_value_head_dim
    keys = 2 * groups * c.linear_key_head_dim

    def tiled(t: Tensor, size: int) -> Tensor:
        return t.unflatten(0, (groups, -1, size)).transpose(0, 1).flatten(0, 2)

    left = Tensors()
    for name, t in tensors.items():
        part = name.partition("linear_attn.")[2]
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            t = torch.cat((t[:keys], tiled(t[keys:], size)))
        elif part in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
            t = tiled(t, 1)
        elif part == "in_proj_z.weight":
            t = tiled(t, size)
        elif part == "out_proj.weight":
            t = tiled(t.T, size).T
        left[name] = t
    return left


def delta_nets(tensors: Tensors, c: Config) -> Tensors:
    """Norms by 1 + w but for the gated one, and what `state_spaces` does."""
    gated = "linear_attn.norm.weight"
    left = norms_plus_one({n: t for n, t in tensors.items() if not n.endswith(gated)}, c)
    left |= {n: t for n, t in tensors.items() if n.endswith(gated)}
    return {n.replace(".dt_bias", ".dt_proj.bias"): t for n, t in state_spaces(left, c).items()}


def falcon_h1(tensors: Tensors, c: Config) -> Tensors:
    """The multipliers of the config, in the weights."""
    inner, groups = c.mamba_d_ssm, c.mamba_n_groups * c.mamba_d_state
    sizes = [inner, inner, groups, groups, c.mamba_n_heads]
    rows = torch.cat([torch.full((n, 1), m) for n, m in zip(sizes, c.ssm_multipliers, strict=True)])
    factors: dict[str, Any] = {
        "down_proj": c.mlp_multipliers[1],
        "gate_proj": c.mlp_multipliers[0],
        "k_proj": c.key_multiplier * c.attention_in_multiplier,
        "q_proj": c.attention_in_multiplier,
        "v_proj": c.attention_in_multiplier,
        "o_proj": c.attention_out_multiplier,
        "out_proj": c.ssm_out_multiplier,
        "in_proj": c.ssm_in_multiplier * rows,
        "lm_head": c.lm_head_multiplier,
        "embed_tokens": c.embedding_multiplier,
    }
    return {n: t * factors.get(n.split(".")[-2], 1) for n, t in tensors.items()}


def streams(tensors: Tensors, c: Config) -> Tensors:
    """Gemma 3n: one tensor of all streams, and a suffix for scales."""
    left = Tensors()
    for name, t in tensors.items():
        if match := re.fullmatch(r"(model\.altup_\w*projections)\.0\.weight", name):
            others = range(c.altup_num_inputs - 1)
            left[f"{match[1]}.weight"] = torch.stack(
                [tensors[f"{match[1]}.{i}.weight"] for i in others]
            )
        elif ".altup_" not in name:
            left[f"{name}.weight" if name.endswith("_scale") else name] = t
    return left


def gemma4(tensors: Tensors, c: Config) -> Tensors:
    """What does not rotate has a huge factor; a suffix for scalars and for experts."""
    size = c.per_layer_config.__dict__["1"].head_dim
    rotated = int(size * c.rope_parameters.full_attention.partial_rotary_factor / 2)
    factors = torch.tensor([1.0] * rotated + [1e30] * (size // 2 - rotated))
    named = {f"{n}.weight" if n.endswith("layer_scalar") else n: t for n, t in tensors.items()}
    return suffixed_experts(named, c) | {"rope.freqs.weight": factors}


def kimi_deltas(tensors: Tensors, c: Config) -> Tensors:
    """Convolutions with four axes, and rates with as many, in place of their logarithms."""
    left = Tensors()
    for name, t in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.").replace(".forget_gate.", ".")
        name = re.sub(r"(experts\.\d+)\.(w[123])", lambda m: f"{m[1]}.{_ROLES[m[2]]}", name)
        if name.endswith("conv1d.weight"):
            t = t.reshape(1, len(t), 1, -1)
        elif name.endswith(".A_log"):
            t = -t.exp().reshape(1, 1, -1, 1)
        left[name.replace(".dt_bias", ".dt_proj.bias")] = t
    return left


def suffixed_experts(tensors: Tensors, c: Config) -> Tensors:
    """Experts that are stacked and fused already, with a suffix."""
    return {
        f"{n}.weight" if n.endswith(("gate_up_proj", "down_proj")) else n: t
        for n, t in tensors.items()
    }


def short_convs(tensors: Tensors, c: Config) -> Tensors:
    return {n: t.squeeze(1) if n.endswith("conv.conv.weight") else t for n, t in tensors.items()}


def bare_experts(tensors: Tensors, c: Config) -> Tensors:
    """LFM2's map knows the names of its experts without that of the body."""
    return {n.removeprefix("model.") if ".experts." in n else n: t for n, t in tensors.items()}


def plain_experts(tensors: Tensors, c: Config) -> Tensors:
    """Nemotron-H's map knows the experts of others."""
    own, plain = ("backbone.layers", ".mixer.experts."), ("model.layers", ".mlp.experts.")
    return {
        n.replace(own[0], plain[0]).replace(own[1], plain[1]) if own[1] in n else n: t
        for n, t in tensors.items()
    }


def encoder(tensors: Tensors, c: Config) -> Tensors:
    """The body alone, under its own names."""
    kept = {n: t for n, t in tensors.items() if "pooler" not in n and "position_ids" not in n}
    return {re.sub(r"^(bert|nomic_bert|model)\.", "", n): t for n, t in kept.items()}


def factor_norms(tensors: Tensors, c: Config) -> Tensors:
    """Each norm as the factor that it is, by its own offset; some keep no suffix."""
    offsets = {"post_mixer_norm": 1 / 5, "post_mlp_norm": 5**-1.5}
    left = Tensors()
    for name, t in tensors.items():
        part = name.split(".")[-2]
        left[name] = t + offsets.get(part, 1.0) if part.endswith("norm") else t
    return left


def plamo2(tensors: Tensors, c: Config) -> Tensors:
    """Bare vectors have the names of modules."""
    bare = (("_norm_weight", "_norm.weight"), ("q_weight", "q.weight"), ("k_weight", "k.weight"))
    left = Tensors()
    for name, t in factor_norms(state_spaces(tensors, c), c).items():
        for end, new in (*bare, ("dt_bias", "dt_proj.bias")):
            name = name.removesuffix(end) + new if name.endswith(end) else name
        left[name] = t
    return left


def without_activations(tensors: Tensors, c: Config) -> Tensors:
    return {name: t for name, t in tensors.items() if ".act_fn." not in name}


granite_experts = split_rows(
    {
        "block_sparse_moe.input_linear": (
            "block_sparse_moe.input_linear.gate",
            "block_sparse_moe.input_linear.up",
        ),
        "shared_mlp.input_linear": ("shared_mlp.gate", "shared_mlp.up"),
    }
)

STEPS: dict[str, tuple[Step, ...]] = {
    "apertus": (without_activations,),
    "phimoe": (stacked,),
    "plamo2": (plamo2,),
    "plamo3": (factor_norms,),
    "granite_swa": (permuted,),
    "mimo2": (stacked, corrections),
    "bailingmoe2": (stacked, corrections),
    "laguna": (stacked, corrections),
    "mellum": (stacked,),
    "hy_v3": (stacked, corrections),
    "cohere2moe": (stacked,),
    "falcon": (falcon_qkv,),
    "gpt2": (conv1d,),
    "gptneox": (per_head_qkv,),
    "bloom": (per_head_qkv, bare_body),
    "internlm2": (internlm2,),
    "chatglm": (chatglm,),
    "smollm3": (permuted,),
    "minicpm": (permuted,),
    "mistral3": (permuted,),
    "baichuan": (baichuan,),
    "olmo": (permuted,),
    "deci": (deci,),
    "dbrx": (dbrx,),
    "deepseek": (permuted, stacked),
    "deepseek2": (split_latents, stacked, corrections),
    "glm4moe": (stacked, corrections),
    "dots1": (stacked, corrections),
    "ernie4_5-moe": (stacked, corrections),
    "hunyuan-moe": (stacked,),
    "minimax-m2": (stacked, corrections),
    "exaone-moe": (stacked, corrections),
    "afmoe": (stacked, corrections),
    "granitemoe": (permuted, granite_experts),
    "granitehybrid": (grouped_scans, permuted, granite_experts),
    "gpt-oss": (gpt_oss,),
    "llama4": (llama4,),
    "step35": (corrections, norms_plus_one),
    "mamba": (state_spaces,),
    "jamba": (state_spaces, stacked),
    "kimi-linear": (kimi_deltas, split_latents, stacked, corrections),
    "mistral4": (split_latents, suffixed_experts),
    "glm-dsa": (split_latents, stacked, corrections),
    "deepseek32": (split_latents, stacked, corrections),
    "gemma-embedding": (norms_plus_one,),
    "falcon-h1": (falcon_h1, grouped_scans),
    "gemma3n": (streams,),
    "gemma4": (gemma4,),
    "lfm2": (short_convs,),
    "lfm2moe": (short_convs, stacked, bare_experts, corrections),
    "mamba2": (grouped_scans,),
    "nemotron_h": (grouped_scans,),
    "nemotron_h_moe": (grouped_scans, stacked, plain_experts, corrections),
    "qwen3vlmoe": (stacked,),
    "qwen3next": (ungrouped_deltas, delta_nets, stacked),
    "qwen35": (tiled_deltas, delta_nets),
    "qwen35moe": (tiled_deltas, delta_nets, stacked),
    "bert": (encoder,),
    "nomic-bert": (encoder,),
    "modern-bert": (encoder,),
}
"""What happens to the tensors of an architecture before they are renamed."""

OWN_NAMES = {
    "self_attn.g_proj": "attn_gate",
    "experts.e_score_correction": "exp_probs_b",
    "mlp.expert_bias": "exp_probs_b",
    "mlp.router.gate": "ffn_gate_inp",
    "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "self_attn.W_pack": "attn_qkv",
    "block_sparse_moe.input_linear.gate": "ffn_gate_exps",
    "block_sparse_moe.input_linear.up": "ffn_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.gate": "ffn_gate_shexp",
    "shared_mlp.up": "ffn_up_shexp",
    "shared_mlp.output_linear": "ffn_down_shexp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "block_sparse_moe.router.weight": "ffn_gate_inp",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps",
    "shared_mlp.input_linear": "ffn_up_shexp",
    "self_attn.sinks": "attn_sinks",
    "self_attn.attention_sink_bias": "attn_sinks",
    "router.scale": "ffn_gate_inp",
    "router.per_expert_scale": "ffn_down_exps",
}
"""Parts of names that the converter renames itself."""


def convert(
    folder: Path,
    arch: str,
    metadata: dict[str, Any],
    kinds: dict[str, Type] | None = None,
    *,
    steps: tuple[Step, ...] | None = None,
    extra: Tensors | None = None,
    floats: bool = False,
) -> Path:
    """Write `folder`'s checkpoint beside it.

    `metadata` is under `{arch}.`; `kinds` are the types of stored tensors by the end of their
    names, with `floats` only rounded to; `steps` are in place of those of the architecture, and
    `extra` tensors are stored as they are.
    """
    config = json.loads(
        (folder / "config.json").read_text(), object_hook=lambda d: SimpleNamespace(**d)
    )
    tensors = load_file(folder / "model.safetensors")
    listed = activations(tensors)
    for step in STEPS.get(arch, ()) if steps is None else steps:
        tensors = step(tensors, config)
    path = folder / "tiny.gguf"
    file = gguf.GGUFWriter(path, arch)
    for key, value in (common(config) | listed | metadata).items():
        if value is not None:
            add(file, key if key.startswith(("tokenizer.", "xielu.")) else f"{arch}.{key}", value)
    if factors := llama3_factors(config):
        file.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    for length in ("long", "short"):
        if listed := getattr(getattr(config, "rope_parameters", None), f"{length}_factor", None):
            file.add_tensor(f"rope_factors_{length}.weight", np.array(listed, np.float32))
    for stored, tensor in renamed(arch, tensors, config):
        write(file, stored, tensor.detach().float(), kinds or {}, floats)
    for stored, tensor in (extra or {}).items():
        file.add_tensor(stored, tensor.numpy())
    for write_part in ("header", "kv_data", "tensors"):
        getattr(file, f"write_{write_part}_to_file")()
    file.close()
    return path


def common(c: Config) -> dict[str, Any]:
    """What the converter writes for every model that has it."""
    rope = getattr(c, "rope_parameters", None)
    base = field(rope, "rope_theta") if rope else None
    return {
        "block_count": field(c, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        or len(field(c, "layer_types", "layers_block_type")),
        "context_length": field(
            c, "max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"
        )
        or 256,
        "embedding_length": hidden(c),
        "feed_forward_length": field(c, "intermediate_size", "n_inner", "ffn_hidden_size")
        or 4 * hidden(c),
        "attention.head_count": heads(c),
        "attention.head_count_kv": kv_heads(c),
        "attention.layer_norm_rms_epsilon": field(c, "rms_norm_eps"),
        "attention.key_length": field(c, "head_dim"),
        "rope.freq_base": float(base) if base else None,
        "expert_used_count": field(c, "num_experts_per_tok", "moe_k"),
        "tokenizer.ggml.eos_token_id": 1,
    }


def activations(tensors: Tensors) -> dict[str, Any]:
    """The parameters of xIELU by layer."""
    listed = dict[str, list[float]]()
    for name in sorted(tensors):
        if ".act_fn." in name:
            listed.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensors[name].item())
    return listed


def llama3_factors(c: Config) -> list[float]:
    """What divides each frequency, where a config scales them as Llama 3.1 does."""
    rope = getattr(c, "rope_parameters", None)
    if rope is None or getattr(rope, "rope_type", None) != "llama3":
        return []
    size = field(c, "head_dim") or hidden(c) // heads(c)
    low, high, factor = rope.low_freq_factor, rope.high_freq_factor, rope.factor
    factors = []
    for channel in range(0, size, 2):
        wavelength = 2 * np.pi * rope.rope_theta ** (channel / size)
        turns = rope.original_max_position_embeddings / wavelength
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return factors


def add(file: gguf.GGUFWriter, key: str, value: Any) -> None:
    method = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(file, f"add_{method[type(value)]}")(key, value)


def renamed(arch: str, tensors: Tensors, c: Config) -> Iterator[tuple[str, Tensor]]:
    named = FAMILIES[arch].names_of if arch in FAMILIES else None
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == (named or arch))
    table = gguf.get_tensor_name_map(kind, common(c)["block_count"])
    for name, tensor in tensors.items():
        own = next((own for part, own in OWN_NAMES.items() if part in name), None)
        if own is not None:
            layer = name.split(".")[2]
            ends = {".bias": "bias", "scale": "scale"}
            suffix = next((new for end, new in ends.items() if name.endswith(end)), "weight")
            yield f"blk.{layer}.{own}.{suffix}", tensor
            continue
        stored = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        yield stored, tensor


def write(
    file: gguf.GGUFWriter, stored: str, tensor: Tensor, kinds: dict[str, Type], floats: bool
) -> None:
    values: np.ndarray[Any, Any] = tensor.contiguous().numpy()
    kind = next((kind for end, kind in kinds.items() if stored.endswith(end)), None)
    if kind is None or values.ndim < 2:
        file.add_tensor(stored, values)
        return
    if kind == Type.NVFP4:
        write_nvfp4(file, stored, values, floats)
        return
    blocks = gguf.quants.quantize(values, kind)
    if floats:
        file.add_tensor(stored, gguf.quants.dequantize(blocks, kind))
    else:
        file.add_tensor(stored, blocks, raw_dtype=kind)


def write_nvfp4(
    file: gguf.GGUFWriter, stored: str, values: np.ndarray[Any, Any], floats: bool
) -> None:
    """Random blocks, which the reference does not quantise to, and a factor for each matrix."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[Type.NVFP4]
    shape = (*values.shape[:-1], values.shape[-1] // size, num_bytes)
    blocks = np.random.default_rng(len(stored)).integers(0, 256, shape, np.uint8)
    blocks[..., :4] = 40 + blocks[..., :4] % 8
    rows = blocks.reshape(*values.shape[:-1], -1)
    factors = np.linspace(0.5, 1.5, values.shape[0] if values.ndim > 2 else 1, dtype=np.float32)
    if floats:
        scale = factors.reshape(-1, *[1] * (values.ndim - 1))
        file.add_tensor(stored, gguf.quants.dequantize(rows, Type.NVFP4) * scale)
    else:
        file.add_tensor(stored, rows, raw_dtype=Type.NVFP4)
        file.add_tensor(stored.replace(".weight", ".scale"), factors)
