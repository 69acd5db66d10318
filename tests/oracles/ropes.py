"""Ropes that no class of transformers has: written out token by token, and their checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.oracles.checkpoints import LLAMA, Oracle, Tensors, maker, source, write
from tests.oracles.mixtures import PlainMixture, expert_tensors, visits, without_ffn
from tests.oracles.plain import PlainLlama

ROWS = {"dual-chunk": "F05.11", "dual-chunk-normed": "F05.11", "fourier": "F05.12"}
"""Models of architectures that have rows of their own, by what is odd in them."""
CHUNKS = {"chunk_size": 13, "local_size": 4, "original_max_position_embeddings": 30}
KEPT = 3
"""Frequencies that FoPE mixes."""
FOURIER = {"rope_type": "default", "rope_theta": 10_000.0, "num_inv_freq": KEPT}


class DualChunk(PlainLlama):
    """Dual chunk attention (An et al. 2024, arXiv:2402.17463): of each query and each key, where
    they are, one pair at a time; and the temperature of YaRN."""

    def attention(self, stem: str, x: Tensor) -> Tensor:
        dim = self.config.head_dim
        query, key, value = (
            self.linear(f"{stem}.{part}_proj", x).view(len(x), -1, dim) for part in "qkv"
        )
        if f"{stem}.q_norm.weight" in self.tensors:
            query, key = self.norm(f"{stem}.q_norm", query), self.norm(f"{stem}.k_norm", key)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        attended = [self._of(i, query, key, value).flatten() for i in range(len(x))]
        return self.linear(f"{stem}.o_proj", torch.stack(attended))

    def _of(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = torch.tensor([_seen_from(i, j) for j in range(i + 1)])
        turned = _turned(query[i], seen[:, 0]), _turned(key[: i + 1], seen[:, 1])
        scores = (turned[0] * turned[1]).sum(-1).T / query.shape[-1] ** 0.5
        trained = CHUNKS["original_max_position_embeddings"]
        mscale = 0.1 * math.log((i + 1) / trained) + 1 if i + 1 > trained else 1.0
        weights = (scores * mscale**2).softmax(-1)
        return torch.einsum("hk,khd->hd", weights, value[: i + 1])


def _seen_from(i: int, j: int) -> tuple[int, int]:
    """The positions of query i and key j for each other (sections 3.1 to 3.3)."""
    size = CHUNKS["chunk_size"] - CHUNKS["local_size"]
    apart = i // size - j // size
    if apart == 0:
        return i % size, j % size
    if apart == 1:
        return min(i % size + size, CHUNKS["chunk_size"]), j % size
    return min(2 * size - 1, CHUNKS["chunk_size"]), j % size


def _turned(heads: Tensor, positions: Tensor) -> Tensor:
    """Heads [..., heads, dim] at each position, rotated by halves: [positions, heads, dim]."""
    dim = heads.shape[-1]
    angles = positions[:, None, None] * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    first, second = heads.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Fourier(PlainLlama):
    """FoPE (Hua et al. 2024, arXiv:2412.17739): pair n of a head turns by the sum over k of
    cos(w_k t) C[k, n], and of sin(w_k t) S[k, n], for the highest frequencies; the others not."""

    def place(self, heads: Tensor) -> Tensor:
        turned = heads.clone()
        half, kept = heads.shape[-1] // 2, KEPT
        of_heads = (
            self.tensors["model.rotary_emb.cos_coef"],
            self.tensors["model.rotary_emb.sin_coef"],
        )
        group = len(heads) // len(of_heads[0])
        speeds = 10_000.0 ** (-torch.arange(kept, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(heads.shape[1]).double(), speeds)
        for head, (first, second) in enumerate(zip(*heads.chunk(2, -1), strict=True)):
            cos_coef, sin_coef = (matrices[head // group].double() for matrices in of_heads)
            cos, sin = angles.cos() @ cos_coef, angles.sin() @ sin_coef
            a, b = first[:, :kept], second[:, :kept]
            turned[head, :, :kept] = a * cos - b * sin
            turned[head, :, half : half + kept] = b * cos + a * sin
        return turned


class InternS1Pro(Fourier, PlainMixture):
    """FoPE over normed heads; of each group of experts, each token visits the best two."""

    def attention(self, stem: str, x: Tensor) -> Tensor:
        self.stem = stem
        return super().attention(stem, x)

    def place(self, heads: Tensor) -> Tensor:
        part = "q" if len(heads) == self.config.num_attention_heads else "k"
        return super().place(self.norm(f"{self.stem}.{part}_norm", heads))

    def ffn(self, stem: str, x: Tensor) -> Tensor:
        if f"{stem}.gate.weight" not in self.tensors:
            return super().ffn(stem, x)
        scores = self.linear(f"{stem}.gate", x).softmax(-1)
        halves = [visits(half, half, 2) for half in scores.chunk(2, -1)]
        rows = [
            first + [(expert + scores.shape[1] // 2, score) for expert, score in second]
            for first, second in zip(*halves, strict=True)
        ]
        totals = [sum(score for _, score in row) for row in rows]
        normed = [
            [(expert, score / total) for expert, score in row]
            for row, total in zip(rows, totals, strict=True)
        ]
        return self.moe(stem, x, normed)


@maker("dual-chunk", "dual-chunk-normed")
def dual_chunk(folder: Path, name: str) -> Oracle:
    """Qwen2, as Qwen2.5-1M is, and Qwen3, which norms its heads before they turn."""
    architecture = "Qwen3ForCausalLM" if name == "dual-chunk-normed" else "Qwen2ForCausalLM"
    plain = {"use_sliding_window": False, "tie_word_embeddings": False, "head_dim": 8}
    _, config, tensors = source(architecture, **plain)
    write(folder, architecture, config | {"dual_chunk_attention_config": CHUNKS}, tensors)
    return DualChunk(tensors, SimpleNamespace(**config | {"head_dim": 8}))


@maker("fourier")
def fourier(folder: Path, name: str) -> Oracle:
    """A Llama with matrices for each of its two key heads."""
    _, config, tensors = source(**LLAMA)
    for part in ("cos", "sin"):
        noise = 0.3 * torch.randn(2, KEPT, KEPT)
        tensors[f"model.rotary_emb.{part}_coef"] = noise + torch.eye(KEPT)
    given = FOURIER | {"fope_sep_head": True, "fope_init_factor": 0.5}
    write(folder, "LlamaForCausalLM", config | {"rope_parameters": given}, tensors)
    return Fourier(tensors, SimpleNamespace(**config))


def qwen3_vision() -> tuple[Any, dict[str, Any]]:
    """A tiny encoder of Qwen3-VL by transformers whose embeddings fit the tiny texts, the same at
    every call, and its config."""
    import transformers

    config = transformers.Qwen3VLVisionConfig(
        **{"depth": 3, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4, "patch_size": 4},
        **{"intermediate_size": 40, "num_position_embeddings": 36},
        deepstack_visual_indexes=[1],
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.Qwen3VLVisionModel(config).eval()
        for parameter in model.parameters():
            parameter.data.normal_(0.0, 0.15)
    return model, config.to_dict()


@maker("InternS1ProForConditionalGeneration")
def interns1_pro(folder: Path, architecture: str) -> Oracle:
    """Its experts lie in two tensors, [in, out]; beside them are an encoder and a time series."""
    _, config, tensors = source("Qwen3ForCausalLM", tie_word_embeddings=False, head_dim=8)
    for part in ("cos", "sin"):
        noise = 0.3 * torch.randn(2, KEPT, KEPT)
        tensors[f"model.rotary_emb.{part}_coef"] = noise + torch.eye(KEPT)
    stored = dict(tensors)
    for layer in (1, 2):
        stem = f"model.layers.{layer}.mlp"
        stored = without_ffn(stored, layer)
        experts = expert_tensors(f"{stem}.experts", 8, 20)
        gate = {f"{stem}.gate.weight": 0.3 * torch.randn(8, 48)}
        tensors = without_ffn(tensors, layer) | experts | gate
        stored |= gate | _stacked(experts, f"{stem}.experts")
    names = {name.replace("model.", "model.language_model."): t for name, t in stored.items()}
    extra = {"model.time_series.conv.weight": torch.ones(4)}
    seen, vision = qwen3_vision()
    extra |= {f"model.visual.{name}": tensor for name, tensor in seen.state_dict().items()}
    text = config | {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 20}
    text |= {"mlp_only_layers": [0], "norm_topk_prob": True, "router_n_groups": 2}
    text |= {"rope_parameters": FOURIER | {"fope_sep_head": True}}
    fields = {"text_config": text, "vision_config": vision, "image_token_id": 319}
    write(folder, architecture, fields, names | extra)
    return InternS1Pro(tensors, SimpleNamespace(**text))


def _stacked(experts: Tensors, stem: str) -> Tensors:
    parts = {
        part: torch.stack([experts[f"{stem}.{e}.{part}_proj.weight"].T for e in range(8)])
        for part in ("gate", "up", "down")
    }
    gate_up = torch.cat((parts["gate"], parts["up"]), -1)
    return {f"{stem}.gate_up_proj": gate_up, f"{stem}.down_proj": parts["down"]}
