"""Checkpoints of architectures that transformers has no class for, and what they must answer.

Each function writes a tiny random checkpoint in the layout of the original into a folder and
returns its oracle: token ids to float32 logits [tokens, vocab].

- `remapped`: the same model as one of transformers', under other names and fused otherwise.
- `computed`: a plain re-computation from the published description, in the files beside this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.oracles.baichuan import Baichuan
from tests.oracles.decilm import DeciLm
from tests.oracles.orion import Orion
from tests.oracles.plain import PlainLlama
from tests.oracles.plamo import Plamo2, shapes
from tests.oracles.scaled import MiniCpm, TeleFlm
from tests.oracles.solar import Solar
from tests.support import tiny_models

Oracle: TypeAlias = Callable[[list[int]], Tensor]
Tensors: TypeAlias = dict[str, Tensor]
LLAMA: dict[str, Any] = {"attention_bias": False, "mlp_bias": False, "rope_parameters": None}
QWEN: dict[str, Any] = {"use_sliding_window": False, "tie_word_embeddings": False}
MAKERS: dict[str, Callable[[Path], Oracle]] = {}


def maker(*architectures: str) -> Callable[[Any], Any]:
    """Register the maker of a checkpoint under each of these spellings."""

    def register(make: Callable[[Path, str], Oracle]) -> Any:
        for name in architectures:
            MAKERS[name] = lambda folder, name=name: make(folder, name)
        return make

    return register


def write(folder: Path, architecture: str, config: dict[str, Any], tensors: Tensors) -> None:
    fields = config | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


def asked(model: Any) -> Oracle:
    """A transformers model as an oracle."""

    @torch.inference_mode()
    def logits(tokens: list[int]) -> Tensor:
        return model(torch.tensor([tokens]), use_cache=False).logits[0]

    return logits


def source(architecture: str = "LlamaForCausalLM", **changes: Any) -> tuple[Any, Any, Tensors]:
    """A tiny model of transformers, its config as a dictionary, its tensors."""
    model = tiny_models.tiny_model(architecture, **changes)
    tensors = {name: t.detach().clone() for name, t in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return model, model.config.to_dict(), tensors


def renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    """Each name after all replacements, in order."""

    def name(old: str) -> str:
        for before, after in pairs:
            old = old.replace(before, after)
        return old

    return {name(old): tensor for old, tensor in tensors.items()}


def fused(tensors: Tensors, into: str, parts: list[str], groups: int = 1) -> Tensors:
    """In every layer, replace the parts by one tensor, `groups` slices of each part in turn."""
    left = dict(tensors)
    for first in [name for name in tensors if f".{parts[0]}." in name]:
        pieces = [left.pop(first.replace(parts[0], part)) for part in parts]
        shares = [piece.unflatten(0, (groups, -1)) for piece in pieces]
        left[first.replace(parts[0], into)] = torch.cat(shares, 1).flatten(0, 1)
    return left


@maker(
    *("LLaMAForCausalLM", "YiForCausalLM", "AquilaForCausalLM", "AquilaModel"),
    *("SkyworkForCausalLM", "XverseForCausalLM"),
)
def llama(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA)
    write(folder, architecture, config, tensors)
    return asked(model)


@maker("PanguEmbeddedForCausalLM", "InternLMForCausalLM")
def pangu(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA | {"attention_bias": True})
    del config["attention_bias"]
    write(folder, architecture, config | {"bias": True}, tensors)
    return asked(model)


@maker("InternLM3ForCausalLM")
def internlm3(folder: Path, architecture: str) -> Oracle:
    """The same model as Qwen 2, whose dynamic rope is another one beyond its context only."""
    model, config, tensors = source("Qwen2ForCausalLM", **QWEN)
    own = {"rope_scaling": {"rope_type": "dynamic", "factor": 6.0}, "qkv_bias": True}
    write(folder, architecture, config | own | {"bias": False, "head_dim": 8}, tensors)
    return asked(model)


@maker("QWenLMHeadModel")
def qwen(folder: Path, architecture: str) -> Oracle:
    """The same model as Qwen 2 with as many keys as queries."""
    model, config, tensors = source("Qwen2ForCausalLM", **QWEN | {"num_key_value_heads": 6})
    names = renamed(
        fused(tensors, "c_attn", ["q_proj", "k_proj", "v_proj"]),
        ("model.layers.", "transformer.h."),
        ("model.embed_tokens.", "transformer.wte."),
        ("model.norm.", "transformer.ln_f."),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.", "attn."),
        ("o_proj", "c_proj"),
        ("mlp.gate_proj", "mlp.w2"),
        ("mlp.up_proj", "mlp.w1"),
        ("mlp.down_proj", "mlp.c_proj"),
    )
    own = {
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "intermediate_size": 2 * config["intermediate_size"],
        "kv_channels": 8,
        "no_bias": True,
    }
    write(folder, architecture, config | own, names)
    return asked(model)


@maker("Plamo3ForCausalLM")
def plamo3(folder: Path, architecture: str) -> Oracle:
    """The same model as Gemma 3, whose embeddings are multiplied, with other offsets of norms."""
    ropes = {"full_attention": 1e6, "sliding_attention": 1e3}
    model, config, tensors = source(
        "Gemma3ForCausalLM",
        hidden_activation="silu",
        query_pre_attn_scalar=16,
        tie_word_embeddings=False,
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in ropes.items()
        },
    )
    tensors["model.embed_tokens.weight"] *= config["hidden_size"] ** 0.5
    for name, t in tensors.items():
        for norm, offset in (("attention", 1 / 5), ("feedforward", 5**-1.5)):
            if name.endswith(f"post_{norm}_layernorm.weight"):
                t += 1 - offset
    packed = fused(tensors, "qkv_proj", ["q_proj", "k_proj", "v_proj"])
    names = renamed(
        fused(packed, "gate_up_proj", ["gate_proj", "up_proj"]),
        ("model.layers.", "model.layers.layers."),
        ("input_layernorm", "pre_mixer_norm"),
        ("post_attention_layernorm", "post_mixer_norm"),
        ("pre_feedforward_layernorm", "pre_mlp_norm"),
        ("post_feedforward_layernorm", "post_mlp_norm"),
        ("self_attn.", "mixer."),
    )
    kept = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept += ("num_key_value_heads", "head_dim", "max_position_embeddings", "vocab_size")
    own = {"window_size": 9, "sliding_window_pattern": 6, "tie_word_embeddings": False}
    own |= {"rope_theta": 1e6, "rope_local_theta": 1e3, "rms_norm_eps": config["rms_norm_eps"]}
    write(folder, architecture, {name: config[name] for name in kept} | own, names)
    return asked(model)


@maker("MiMoForCausalLM")
def mimo(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source("Qwen2ForCausalLM", tie_word_embeddings=False)
    extra = {f"model.mtp_layers.0.{name}.weight": torch.randn(4) for name in ("input_proj", "norm")}
    write(folder, architecture, config | {"num_nextn_predict_layers": 1}, tensors | extra)
    return asked(model)


@maker("Gemma4ForConditionalGeneration")
def gemma4(folder: Path, architecture: str) -> Oracle:
    """Texts with experts, as published: global heads by two keys, encoders without configs, and
    projections to KV in layers that read those of others."""
    experts = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3}
    kv_heads = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    changes = experts | kv_heads | {"moe_intermediate_size": 24}
    model, config, tensors = source("Gemma4ForCausalLM", **changes)
    del config["per_layer_config"]
    text = config | {"global_head_dim": 16, "num_global_key_value_heads": 1}
    named = renamed(tensors, ("model.", "model.language_model."))
    encoders = ("embed_vision.embedding_projection", "audio_tower.x")
    unread = (*encoders, "language_model.layers.5.self_attn.k_proj")
    extra = {f"model.{name}.weight": torch.randn(4) for name in unread}
    write(folder, architecture, {"text_config": text, "vision_config": None}, named | extra)
    return asked(model)


@maker("BaiChuanForCausalLM")
def baichuan_7b(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA, num_key_value_heads=6)
    packed = fused(tensors, "W_pack", ["q_proj", "k_proj", "v_proj"])
    write(folder, architecture, config, packed)
    return asked(model)


@maker("BaichuanForCausalLM")
def baichuan_13b(folder: Path, architecture: str, layers: int = 3) -> Oracle:
    model, config, tensors = source(**LLAMA, num_key_value_heads=6, num_hidden_layers=layers)
    packed = fused(tensors, "W_pack", ["q_proj", "k_proj", "v_proj"])
    del config["max_position_embeddings"]
    write(folder, architecture, config | {"model_max_length": tiny_models.MAX_LENGTH}, packed)
    return Baichuan(tensors, model.config)


@maker("InternLM2ForCausalLM")
def internlm2(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA)
    packed = fused(tensors, "wqkv", ["q_proj", "k_proj", "v_proj"], groups=2)
    names = renamed(
        packed,
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
        ("self_attn.o_proj", "attention.wo"),
        ("self_attn", "attention"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    )
    write(folder, architecture, config, names)
    return asked(model)


@maker("ExaoneForCausalLM")
def exaone(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA | {"rope_parameters": tiny_models.LLAMA3_ROPE})
    names = renamed(
        tensors,
        ("model.layers", "transformer.h"),
        ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"),
        ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
    )
    spelled = {
        "num_layers": config.pop("num_hidden_layers"),
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "activation_function": config.pop("hidden_act"),
    }
    write(folder, architecture, config | spelled, names)
    return asked(model)


@maker("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(folder: Path, architecture: str) -> Oracle:
    """The same model as GLM-4 of transformers, with a longer base."""
    rope = {"rope_type": "default", "rope_theta": 50_000.0, "partial_rotary_factor": 0.5}
    model, config, tensors = source("GlmForCausalLM", rope_parameters=rope)
    packed = fused(tensors, "query_key_value", ["q_proj", "k_proj", "v_proj"])
    names = renamed(
        packed,
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"),
        ("model.layers", "transformer.encoder.layers"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("self_attn", "self_attention"),
        ("gate_up_proj", "dense_h_to_4h"),
        ("down_proj", "dense_4h_to_h"),
    )
    names["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)
    del config["rope_parameters"]
    spelled = {
        "num_layers": config.pop("num_hidden_layers"),
        "ffn_hidden_size": config.pop("intermediate_size"),
        "kv_channels": config.pop("head_dim"),
        "layernorm_epsilon": config.pop("rms_norm_eps"),
        "seq_length": config.pop("max_position_embeddings"),
        "padded_vocab_size": config.pop("vocab_size"),
        "multi_query_attention": True,
        "multi_query_group_num": config.pop("num_key_value_heads"),
        "add_qkv_bias": config.pop("attention_bias"),
        "rope_ratio": 5.0,
    }
    write(folder, architecture, config | spelled, names)
    return asked(model)


@maker("TeleChat2ForCausalLM")
def telechat2(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA | {"attention_bias": True, "mlp_bias": True})
    for name in list(tensors):
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias", "gate_proj.bias")) or (
            name.endswith("up_proj.bias")
        ):
            del tensors[name]
            model.get_parameter(name).data.zero_()
    packed = fused(tensors, "key_value", ["k_proj", "v_proj"], groups=2)
    names = renamed(
        packed,
        ("model.layers", "transformer.h"),
        ("model.embed_tokens", "transformer.word_embeddings"),
        ("model.norm", "transformer.ln_f"),
        ("self_attn.q_proj", "self_attention.query"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("self_attn", "self_attention"),
    )
    spelled = {
        "n_layer": config.pop("num_hidden_layers"),
        "n_head": config.pop("num_attention_heads"),
        "ffn_hidden_size": config.pop("intermediate_size"),
        "layer_norm_epsilon": config.pop("rms_norm_eps"),
        "seq_length": config.pop("max_position_embeddings"),
    }
    write(folder, architecture, config | spelled, names)
    return asked(model)


FAIRSEQ2 = [
    ("model.embed_tokens", "decoder_frontend.embed"),
    ("model.norm", "decoder.layer_norm"),
    ("model.", "decoder."),
    ("lm_head", "final_proj"),
    ("input_layernorm", "self_attn_layer_norm"),
    ("post_attention_layernorm", "ffn_layer_norm"),
    ("self_attn.o_proj", "self_attn.output_proj"),
    ("mlp.gate_proj", "ffn.gate_proj"),
    ("mlp.up_proj", "ffn.inner_proj"),
    ("mlp.down_proj", "ffn.output_proj"),
]


def fairseq2_tensors() -> tuple[Any, dict[str, Any], Tensors]:
    """A Llama as fairseq2 names it, the rotary channels of each head next to each other."""
    model, config, tensors = source(**LLAMA)
    for name, tensor in tensors.items():
        if ".q_proj." in name or ".k_proj." in name:
            heads = tensor.unflatten(0, (-1, 2, 4))  # head_dim 8, in two halves
            tensors[name] = heads.transpose(1, 2).flatten(0, 2)
    return model, config, renamed(tensors, *FAIRSEQ2)


@maker("Fairseq2LlamaForCausalLM")
def fairseq2(folder: Path, architecture: str) -> Oracle:
    """Two files, each with every tensor's share of one rank."""
    model, config, tensors = fairseq2_tensors()
    write(folder, architecture, config, {})
    (folder / "model.safetensors").unlink()
    for rank in range(2):
        shares = {
            name: tensor
            if tensor.ndim == 1
            else tensor.chunk(2, int(".output_proj." in name))[rank].contiguous()
            for name, tensor in tensors.items()
        }
        save_file(shares, folder / f"model.{rank}.safetensors")
    return asked(model)


@maker("OrionForCausalLM")
def orion(folder: Path, architecture: str) -> Oracle:
    model, config, tensors = source(**LLAMA)
    for name in [name for name in tensors if "norm" in name]:
        tensors[name.replace("weight", "bias")] = 0.2 * torch.randn(tensors[name].shape)
    write(folder, architecture, config, tensors)
    return Orion(tensors, model.config)


@maker("SolarForCausalLM")
def solar(folder: Path, architecture: str) -> Oracle:
    _, config, tensors = source(**LLAMA, num_hidden_layers=7)
    skips = {"bskcn_1": [1, 3], "bskcn_2": [3], "bskcn_3": [2, 5], "bskcn_4": [6]}
    write(folder, architecture, config | skips | {"bskcn_tv": [0.9, 0.8]}, tensors)
    return Solar(tensors, SimpleNamespace(**config | skips))


def computed(
    folder: Path, architecture: str, oracle: type[PlainLlama], fields: dict[str, Any]
) -> Oracle:
    _, config, tensors = source(**LLAMA)
    write(folder, architecture, config | fields, tensors)
    return oracle(tensors, SimpleNamespace(**config | fields))


@maker("MiniCPMForCausalLM")
def minicpm(folder: Path, architecture: str) -> Oracle:
    fields = {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 16}
    return computed(folder, architecture, MiniCpm, fields)


@maker("TeleFLMForCausalLM")
def teleflm(folder: Path, architecture: str) -> Oracle:
    fields = {"use_mup": True, "input_mult": 2.5, "output_mult": 3.0, "mup_scale_factor": 4.0}
    return computed(folder, architecture, TeleFlm, fields)


@maker("DeciLMForCausalLM", "NemotronNASForCausalLM", "NemotronNasForCausalLM")
def decilm(folder: Path, architecture: str) -> Oracle:
    """Attention with 6, 2, no and 1 key heads; feed-forwards of 256, no, 256 and 512 channels."""
    heads, sizes = (1, 3, None, 6), (2.0, None, 5.0, 12.0)
    model, config, tensors = source(**LLAMA, num_hidden_layers=4)
    for layer, (group, mult) in enumerate(zip(heads, sizes, strict=True)):
        stem = f"model.layers.{layer}"
        for name in [name for name in tensors if name.startswith(stem)]:
            attention = "self_attn" in name or "input_layernorm" in name
            if (attention and group is None) or (not attention and mult is None):
                del tensors[name]
        for part in "kv" if group else "":
            tensors[f"{stem}.self_attn.{part}_proj.weight"] = 0.3 * torch.randn(48 // group, 48)
        if mult is not None:
            size = -(-int(2 * mult * 48 / 3) // 256) * 256
            for part, shape in {"gate": (size, 48), "up": (size, 48), "down": (48, size)}.items():
                tensors[f"{stem}.mlp.{part}_proj.weight"] = 0.2 * torch.randn(shape)
    blocks = [
        {
            "attention": {"no_op": group is None, "n_heads_in_group": group},
            "ffn": {"no_op": mult is None, "ffn_mult": mult},
        }
        for group, mult in zip(heads, sizes, strict=True)
    ]
    write(folder, architecture, config | {"block_configs": blocks}, tensors)
    return DeciLm(tensors, model.config)


@maker("Plamo2ForCausalLM")
def plamo2(folder: Path, architecture: str) -> Oracle:
    """State spaces and attention within a window, in turn."""
    config = {
        "vocab_size": tiny_models.VOCAB_SIZE,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "intermediate_size": 80,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size_per_head": 12,
        "attention_window_size": 9,
        "mamba_num_heads": 6,
        "mamba_d_state": 10,
        "mamba_d_conv": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": tiny_models.MAX_LENGTH,
    }
    made = SimpleNamespace(**config)
    tensors = {name: _random(name, shape) for name, shape in shapes(made).items()}
    write(folder, architecture, config, tensors)
    return Plamo2(tensors, made)


def _random(name: str, shape: tuple[int, ...]) -> Tensor:
    """Norms around what their offset leaves to them; decays that remember whole pages."""
    if name.endswith("A_log"):
        return torch.randn(shape) * 0.5 - 2.0
    if name.endswith(("norm_weight", ".q_weight", ".k_weight", ".D")):
        return 1 + 0.2 * torch.randn(shape)
    return (0.2 if len(shape) == 1 else 0.3) * torch.randn(shape)
