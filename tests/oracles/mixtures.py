"""Checkpoints of mixtures of experts that transformers has no class for, and what they answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.checkpoints import (
    LLAMA,
    Oracle,
    Tensors,
    asked,
    fused,
    maker,
    renamed,
    source,
    write,
)
from tests.oracles.plain import PlainLlama
from tests.support import tiny_models


def visits(scores: Tensor, choice: Tensor, count: int) -> list[list[tuple[int, Tensor]]]:
    """Per token, its experts in order of choice and the score of each."""
    return [
        [(e, row[e]) for e in sorted(range(len(row)), key=lambda e: -chosen[e].item())[:count]]
        for row, chosen in zip(scores, choice, strict=True)
    ]


class PlainMixture(PlainLlama):
    """Where a layer has a router, each token visits its experts one by one."""

    def moe(self, stem: str, x: Tensor, to: list[list[tuple[int, Tensor]]]) -> Tensor:
        rows = [
            sum(weight * self.ffn(f"{stem}.experts.{expert}", token) for expert, weight in row)
            for token, row in zip(x, to, strict=True)
        ]
        return torch.stack([torch.as_tensor(row) for row in rows])


def expert_tensors(stem: str, count: int, size: int, hidden: int = 48) -> Tensors:
    """Random experts, one tensor per projection of each."""
    shapes = {"gate": (size, hidden), "up": (size, hidden), "down": (hidden, size)}
    return {
        f"{stem}.{expert}.{part}_proj.weight": 0.3 * torch.randn(shape)
        for expert in range(count)
        for part, shape in shapes.items()
    }


def without_ffn(tensors: Tensors, layer: int) -> Tensors:
    return {n: t for n, t in tensors.items() if not n.startswith(f"model.layers.{layer}.mlp.")}


class Deepseek(PlainMixture):
    """DeepSeek-MoE: a softmax over experts, the best of them as they are, and shared experts."""

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        if f"{stem}.gate.weight" not in self.tensors:
            return super().ffn(stem, x)
        scores = self.linear(f"{stem}.gate", x).softmax(-1)
        routed = self.moe(stem, x, visits(scores, scores, self.config.num_experts_per_tok))
        return routed + super().ffn(f"{stem}.shared_experts", x)


@maker("DeepseekForCausalLM")
def deepseek(folder: Path, architecture: str, layers: int = 4) -> Oracle:
    _, config, tensors = source(**LLAMA, num_hidden_layers=layers)
    fields = {
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "moe_intermediate_size": 20,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 2,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
    }
    layer = 2  # the only one from first_k_dense_replace on that moe_layer_freq divides
    stem = f"model.layers.{layer}.mlp"
    tensors = without_ffn(tensors, layer) | expert_tensors(f"{stem}.experts", 8, 20)
    for part, shape in {"gate": (40, 48), "up": (40, 48), "down": (48, 40)}.items():
        tensors[f"{stem}.shared_experts.{part}_proj.weight"] = 0.3 * torch.randn(shape)
    tensors[f"{stem}.gate.weight"] = 0.3 * torch.randn(8, 48)
    write(folder, architecture, config | fields, tensors)
    return Deepseek(tensors, SimpleNamespace(**config | fields))


def stacked(tensors: Tensors, stem: str, count: int) -> Tensors:
    """Experts as three tensors [experts, ...] under `stem`."""
    left = {name: t for name, t in tensors.items() if not name.startswith(f"{stem}.experts.")}
    for part in ("gate", "up", "down"):
        rows = [tensors[f"{stem}.experts.{e}.{part}_proj.weight"] for e in range(count)]
        left[f"{stem}.{part}_proj.weight"] = torch.stack(rows)
    return left


class Step3(PlainMixture):
    """Multi-matrix factorisation attention: normed narrow queries, one key head for all."""

    def attention(self, stem: str, x: Tensor) -> Tensor:
        dim = self.config.head_dim
        narrow = self.norm(f"{stem}.inter_norm", self.linear(f"{stem}.q_proj", x))
        query = self.place(self.linear(f"{stem}.wq", narrow).view(len(x), -1, dim).transpose(0, 1))
        key = self.place(self.linear(f"{stem}.k_proj", x)[None])
        scores = query @ key.transpose(1, 2) / dim**0.5
        mask = torch.ones(len(x), len(x)).tril().bool()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = weights @ self.linear(f"{stem}.v_proj", x)[None]
        return self.linear(f"{stem}.o_proj", mixed.transpose(0, 1).flatten(1))

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        block = stem.removesuffix(".mlp")
        if f"{block}.moe.gate.weight" not in self.tensors or stem == block:
            return super().ffn(stem, x)
        scores = self.linear(f"{block}.moe.gate", x).softmax(-1)
        to = visits(scores, scores, self.config.moe_top_k)
        to = [[(e, w / sum(v for _, v in row)) for e, w in row] for row in to]
        return self.moe(f"{block}.moe", x, to) + super().ffn(f"{block}.share_expert", x)


@maker("Step3TextForCausalLM")
def step3(folder: Path, architecture: str) -> Oracle:
    _, config, tensors = source(**LLAMA)
    dim, rank, heads = 16, 24, config["num_attention_heads"]
    config["max_position_embedding"] = config.pop("max_position_embeddings")
    config["num_attention_groups"] = 1
    config["rope_parameters"] = None
    fields: dict[str, Any] = {
        "head_dim": dim,
        "share_q_dim": rank,
        "moe_num_experts": 8,
        "moe_top_k": 3,
        "moe_intermediate_size": 20,
        "share_expert_dim": 28,
        "norm_expert_weight": True,
        "moe_layers_enum": "1,2",
        "rope_theta": 10_000.0,
    }
    for layer in range(3):
        stem = f"model.layers.{layer}.self_attn"
        shapes = {"q_proj": (rank, 48), "k_proj": (dim, 48), "v_proj": (dim, 48)}
        shapes |= {"wq": (heads * dim, rank), "o_proj": (48, heads * dim)}
        for part, shape in shapes.items():
            tensors[f"{stem}.{part}.weight"] = 0.3 * torch.randn(shape)
        tensors[f"{stem}.inter_norm.weight"] = 1 + 0.2 * torch.randn(rank)
    split = dict(tensors)
    for layer in (1, 2):
        stem = f"model.layers.{layer}"
        split = without_ffn(split, layer) | expert_tensors(f"{stem}.moe.experts", 8, 20)
        split[f"{stem}.moe.gate.weight"] = 0.3 * torch.randn(8, 48)
        for part, shape in {"gate": (28, 48), "up": (28, 48), "down": (48, 28)}.items():
            split[f"{stem}.share_expert.{part}_proj.weight"] = 0.3 * torch.randn(shape)
    stored = split
    for layer in (1, 2):
        stored = stacked(stored, f"model.layers.{layer}.moe", 8)
    write(folder, architecture, config | fields, stored)
    return Step3(split, SimpleNamespace(**config | fields))


class Step3p5:
    """Step 3.5 by the text tower of transformers' Step 3.7."""

    def __init__(self, tower: Any, head: Tensor) -> None:
        self.tower, self.embed = tower, tower.embed_tokens
        self._head = head

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states [tokens, hidden], after the final norm."""
        states: Tensor = self.tower(tokens[None], use_cache=False).last_hidden_state[0]
        return states

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._head)

    @torch.inference_mode()
    def __call__(self, tokens: list[int]) -> Tensor:
        return self.head(self.hidden(torch.tensor(tokens)))


@maker("Step3p5ForCausalLM")
def step3p5(folder: Path, architecture: str, vocab: int = tiny_models.VOCAB_SIZE) -> Step3p5:
    """The text tower of transformers' Step 3.7 under the names and fields of Step 3.5."""
    from transformers import Step3p7TextConfig
    from transformers.models.step3p7.modeling_step3p7 import Step3p7TextModel

    fields: dict[str, Any] = {
        **{"vocab_size": vocab, "hidden_size": 48, "intermediate_size": 80},
        **{"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 12},
        **{"max_position_embeddings": tiny_models.MAX_LENGTH, "rms_norm_eps": 1e-5},
        **{"moe_num_experts": 8, "moe_top_k": 3, "moe_intermediate_size": 20},
        **{"share_expert_dim": 28, "moe_layers_enum": "1,2,3", "sliding_window": 9},
        **{"num_attention_groups": 2, "moe_router_scaling_factor": 1.7},
        "layer_types": 2 * ["full_attention", "sliding_attention"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 6,
            "num_attention_groups": 2,
            "head_dim": 12,
        },
        "rope_theta": [50_000.0, 10_000.0, 50_000.0, 10_000.0],
        "partial_rotary_factors": [0.5, 1.0, 0.5, 1.0],
        "swiglu_limits": [0.0, 0.0, 0.4, 0.3],
        "swiglu_limits_shared": [0.0, 0.0, 0.5, 0.0],
        "initializer_range": 0.3,
    }
    tower = Step3p7TextModel(Step3p7TextConfig(**fields)).eval()
    tensors: Tensors = {}
    for name, tensor in tower.state_dict().items():
        tensor.normal_(0.0, 0.3 if tensor.ndim > 1 else 0.2)
        tensors |= _step3p5_names(f"model.{name}", tensor)
    tensors["lm_head.weight"] = head = 0.3 * torch.randn(vocab, 48)
    own = {"use_head_wise_attn_gate": True, "use_moe_router_bias": True}
    write(folder, architecture, fields | own, tensors)
    return Step3p5(tower, head)


def _step3p5_names(name: str, tensor: Tensor) -> Tensors:
    if name.endswith("experts.gate_up_proj"):
        block = name.replace("mlp.experts.gate_up_proj", "moe")
        gate, up = tensor.chunk(2, dim=1)
        return {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}
    for ours, theirs in (
        ("mlp.experts.down_proj", "moe.down_proj.weight"),
        ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
        ("mlp.gate.weight", "moe.gate.weight"),
        ("mlp.shared_experts.", "share_expert."),
    ):
        name = name.replace(ours, theirs)
    return {name: tensor}


class Pangu(PlainMixture):
    """openPangu Pro: sandwich norms; normed learned keys, never rotated, before all others."""

    def block(self, layer: int, x: Tensor) -> Tensor:
        stem = f"model.layers.{layer}"
        y = self.attention(f"{stem}.self_attn", self.norm(f"{stem}.input_layernorm", x))
        x = x + self.norm(f"{stem}.post_attention_layernorm", y)
        y = self.ffn(f"{stem}.mlp", self.norm(f"{stem}.pre_mlp_layernorm", x))
        return x + self.norm(f"{stem}.post_mlp_layernorm", y)

    def attention(self, stem: str, x: Tensor) -> Tensor:
        c = self.config
        dim = c.qk_nope_dim + c.qk_rope_dim
        query, key = (self.linear(f"{stem}.{p}_proj", x).view(len(x), -1, dim) for p in "qk")
        value = self.linear(f"{stem}.v_proj", x).view(len(x), -1, c.v_channels)
        query, key = self.turn(query), self.turn(self.norm(f"{stem}.k_layernorm", key))
        sinks = self.norm(f"{stem}.k_layernorm", self.tensors[f"{stem}.param_sink_key"])
        key = torch.cat((sinks, key))
        value = torch.cat((self.tensors[f"{stem}.param_sink_value"], value))
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / dim**0.5
        mask = torch.ones(len(x), len(key)).tril(len(sinks)).bool()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.linear(
            f"{stem}.o_proj", torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
        )

    def turn(self, heads: Tensor) -> Tensor:
        """Rotate neighbouring channels of the first `qk_rope_dim` of [tokens, heads, dim]."""
        dim = self.config.qk_rope_dim
        frequencies = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.outer(torch.arange(len(heads)).float(), frequencies)[:, None]
        even, odd = heads[..., 0:dim:2], heads[..., 1:dim:2]
        pairs = torch.stack(
            (
                even * angles.cos() - odd * angles.sin(),
                odd * angles.cos() + even * angles.sin(),
            ),
            dim=-1,
        )
        return torch.cat((pairs.flatten(-2), heads[..., dim:]), dim=-1)

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        if f"{stem}.gate.weight" not in self.tensors:
            return super().ffn(stem, x)
        c = self.config
        scores = self.linear(f"{stem}.gate", x).sigmoid()
        choice = scores + self.tensors[f"{stem}.gate.e_score_correction_bias"]
        to = [
            [(e, c.routed_scaling_factor * w / sum(v for _, v in row)) for e, w in row]
            for row in visits(scores, choice, c.num_experts_per_tok)
        ]
        return self.moe(stem, x, to) + super().ffn(f"{stem}.shared_experts", x)


class PanguUltra(Pangu):
    """openPangu Ultra: the same blocks around latent attention, keys and values in full."""

    def attention(self, stem: str, x: Tensor) -> Tensor:
        c, length = self.config, len(x)
        low = self.norm(f"{stem}.q_a_layernorm", self.linear(f"{stem}.q_a_proj", x))
        query = self.linear(f"{stem}.q_b_proj", low).view(length, c.num_attention_heads, -1)
        down = self.linear(f"{stem}.kv_a_proj_with_mqa", x)
        latent = self.norm(f"{stem}.kv_a_layernorm", down[:, : c.kv_lora_rank])
        up = self.linear(f"{stem}.kv_b_proj", latent).view(length, c.num_attention_heads, -1)
        key, value = up[..., : c.qk_nope_head_dim], up[..., c.qk_nope_head_dim :]
        turned = self.turn(down[:, None, c.kv_lora_rank :]).expand(-1, c.num_attention_heads, -1)
        key = torch.cat((key, turned), dim=-1)
        nope, rest = query[..., : c.qk_nope_head_dim], query[..., c.qk_nope_head_dim :]
        query = torch.cat((nope, self.turn(rest)), dim=-1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / query.shape[-1] ** 0.5
        mask = torch.ones(length, length).tril().bool()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.linear(
            f"{stem}.o_proj", torch.einsum("hqk,khd->qhd", weights, value).flatten(1)
        )


@maker("PanguUltraMoEForCausalLM", "OpenPanguForCausalLM")
def pangu_ultra(folder: Path, architecture: str, vocab: int = tiny_models.VOCAB_SIZE) -> PanguUltra:
    _, config, tensors = source(**LLAMA, vocab_size=vocab)
    fields: dict[str, Any] = {
        **{"q_lora_rank": 18, "kv_lora_rank": 14, "qk_nope_head_dim": 10, "v_head_dim": 12},
        **{"qk_rope_head_dim": 8, "qk_rope_dim": 8},
        **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
        **{"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7},
        **{"norm_topk_prob": True, "router_enable_expert_bias": True, "sandwich_norm": True},
        **{"rope_theta": 10_000.0},
    }
    for layer in range(3):
        stem = f"model.layers.{layer}.self_attn"
        for part in "qkv":
            del tensors[f"{stem}.{part}_proj.weight"]
        shapes = {"q_a_proj": (18, 48), "q_b_proj": (108, 18), "kv_a_proj_with_mqa": (22, 48)}
        shapes |= {"kv_b_proj": (132, 14), "o_proj": (48, 72)}
        for part, shape in shapes.items():
            tensors[f"{stem}.{part}.weight"] = 0.3 * torch.randn(shape)
        for part, size in {"q_a": 18, "kv_a": 14}.items():
            tensors[f"{stem}.{part}_layernorm.weight"] = 1 + 0.2 * torch.randn(size)
    config.pop("rope_parameters", None)
    tensors = pangu_ffns(tensors)
    write(folder, architecture, config | fields, tensors)
    return PanguUltra(tensors, SimpleNamespace(**config | fields))


def pangu_ffns(tensors: Tensors) -> Tensors:
    """Sandwich norms in every layer; experts in all but the first."""
    for layer in range(3):
        for name in ("pre_mlp", "post_mlp"):
            weight = 1 + 0.2 * torch.randn(48)
            tensors[f"model.layers.{layer}.{name}_layernorm.weight"] = weight
    for layer in (1, 2):
        stem = f"model.layers.{layer}.mlp"
        tensors = without_ffn(tensors, layer) | expert_tensors(f"{stem}.experts", 8, 20)
        tensors[f"{stem}.gate.weight"] = 0.3 * torch.randn(8, 48)
        tensors[f"{stem}.gate.e_score_correction_bias"] = 0.2 * torch.randn(8)
        for part, shape in {"gate": (40, 48), "up": (40, 48), "down": (48, 40)}.items():
            tensors[f"{stem}.shared_experts.{part}_proj.weight"] = 0.3 * torch.randn(shape)
    return tensors


@maker("PanguProMoEV2ForCausalLM")
def pangu(folder: Path, architecture: str) -> Oracle:
    _, config, tensors = source(**LLAMA)
    fields: dict[str, Any] = {
        **{"qk_nope_dim": 8, "qk_rope_dim": 4, "v_channels": 6, "param_sink_number": 5},
        **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 20},
        **{"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7},
        **{"norm_topk_prob": True, "router_enable_expert_bias": True, "sandwich_norm": True},
        **{"bias": True, "rope_theta": 10_000.0},
    }
    for layer in range(3):
        stem = f"model.layers.{layer}"
        shapes = {"q": (72, 48), "k": (24, 48), "v": (12, 48), "o": (48, 36)}
        for part, shape in shapes.items():
            tensors[f"{stem}.self_attn.{part}_proj.weight"] = 0.3 * torch.randn(shape)
            tensors[f"{stem}.self_attn.{part}_proj.bias"] = 0.2 * torch.randn(shape[0])
        tensors[f"{stem}.self_attn.k_layernorm.weight"] = 1 + 0.2 * torch.randn(12)
        tensors[f"{stem}.self_attn.param_sink_key"] = torch.randn(5, 2, 12)
        tensors[f"{stem}.self_attn.param_sink_value"] = torch.randn(5, 2, 6)
    config.pop("rope_parameters", None)
    tensors = pangu_ffns(tensors)
    write(folder, architecture, config | fields, tensors)
    return Pangu(tensors, SimpleNamespace(**config | fields))


@maker("MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM")
def minimax_text_01(folder: Path, architecture: str) -> Oracle:
    """The model that transformers calls MiniMax, as its authors stored it."""
    model, config, tensors = source("MiniMaxForCausalLM", num_attention_heads=8, head_dim=8)
    blends = {
        f"layernorm_{ours}_{end}": config.pop(f"{theirs}_{end}_factor")
        for ours, theirs in MINIMAX_PARTS.items()
        for end in ("alpha", "beta")
    }
    kinds = [int(kind == "full_attention") for kind in config.pop("layer_types")]
    base = config.pop("rope_parameters")["rope_theta"]
    fields = {"attn_type_list": kinds, "postnorm": True, "rotary_dim": 8, "rope_theta": base}
    kept = {name: t for name, t in tensors.items() if not name.endswith(("_rate", "_decay"))}
    separate = dict[str, Tensor]()
    for name, tensor in kept.items():
        name, part = name.replace(".mlp.", ".block_sparse_moe."), name.rpartition(".")[2]
        halves = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}.get(part)
        if halves is None:
            separate[name] = tensor
            continue
        for expert, rows in enumerate(tensor):
            stem = name.replace(part, str(expert))
            for half, piece in zip(halves, rows.chunk(len(halves)), strict=True):
                separate[f"{stem}.{half}.weight"] = piece
    write(folder, architecture, config | fields | blends, separate)
    return asked(model)


MINIMAX_PARTS = {
    "full_attention": "full_attn",
    "linear_attention": "linear_attn",
    "mlp": "mlp",
}


@maker("BailingMoeV2ForCausalLM")
def bailing2(folder: Path, architecture: str) -> Oracle:
    """The same model as GLM-4.5."""
    model, config, tensors = source("Glm4MoeForCausalLM")
    for name in [name for name in tensors if ".experts." in name]:
        stem, whole = name.rpartition(".")[0], tensors.pop(name)
        parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
        for expert, matrix in enumerate(whole):
            for part, rows in zip(parts, matrix.chunk(len(parts)), strict=True):
                tensors[f"{stem}.{expert}.{part}.weight"] = rows
    names = renamed(
        fused(tensors, "query_key_value", ["q_proj", "k_proj", "v_proj"]),
        ("embed_tokens", "word_embeddings"),
        ("self_attn.o_proj", "attention.dense"),
        ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"),
        ("self_attn.", "attention."),
        ("e_score_correction_bias", "expert_bias"),
    )
    own = {
        "num_experts": config.pop("n_routed_experts"),
        "num_shared_experts": config.pop("n_shared_experts"),
        "moe_shared_expert_intermediate_size": config["moe_intermediate_size"],
        "use_qkv_bias": True,
        "score_function": "sigmoid",
        "partial_rotary_factor": 0.5,
        "rope_theta": 10_000.0,
        "rope_parameters": None,
    }
    del config["attention_bias"]
    write(folder, architecture, config | own, names)
    return asked(model)
