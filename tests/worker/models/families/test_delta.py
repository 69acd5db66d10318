"""Qwen3-Next, Qwen3.5, Kimi Linear and OLMo Hybrid, as their first configs spell them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import (
    Attention,
    DeltaNet,
    GatedNorm,
    Glu,
    LatentAttention,
    Moe,
    Norm,
    OutputGate,
    QkNorm,
    Sections,
)
from tests.support import tiny_models

CPU = torch.device("cpu")
EXPERTS = {
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
KIMI = {
    "linear_attn_config": {
        "full_attn_layers": [4, 8],
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "num_hidden_layers": 8,
    "max_position_embeddings": None,
    "model_max_length": 1_048_576,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mla_use_nope": True,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
}


def kinds(spec: Any) -> list[type]:
    return [type(mixer) for mixer, _ in spec.layers]


def test_qwen3_next_sees_everything_in_every_fourth_layer(spec_of: Any) -> None:
    spec = spec_of("Qwen3NextForCausalLM", head_dim=256, rope_theta=1e7, **EXPERTS)
    assert kinds(spec) == [DeltaNet] * 3 + [Attention]
    norm = GatedNorm(1e-6, 32, gate_first=False, shared=True)
    assert spec.layers[0][0] == DeltaNet(16, 32, 128, 128, 4, norm)
    heads = spec.layers[3][0]
    assert heads.gate == OutputGate("channel") and heads.qk_norm == QkNorm(Norm(1e-6, offset=1))
    assert (heads.rope.dim, heads.rope.base) == (64, 1e7)
    sparse = spec.layers[0][1]
    assert isinstance(sparse, Moe) and sparse.shared_gate and sparse.router.norm == 1.0
    assert kinds(spec_of("Qwen3NextForCausalLM", full_attention_interval=2, **EXPERTS)) == [
        *[DeltaNet, Attention] * 2
    ]


def test_qwen3_5_has_its_texts_apart(spec_of: Any) -> None:
    ropes = {"mrope_section": [11, 11, 10], "mrope_interleaved": True, "rope_theta": 1e7}
    text = {"head_dim": 256, "rope_parameters": ropes | {"partial_rotary_factor": 0.25}}
    spec = spec_of("Qwen3_5ForConditionalGeneration", text_config=text, vision_config={"depth": 27})
    assert kinds(spec) == [DeltaNet] * 3 + [Attention]
    rope = spec.layers[3][0].rope
    assert rope.sections == Sections((11, 11, 10), "cycled") and (rope.dim, rope.base) == (64, 1e7)
    assert "mtp." in spec.tensors.unused and spec.tower is not None and not spec.tower.deepstack


def test_qwen3_5s_experts_need_no_width_of_a_dense_feed_forward(spec_of: Any) -> None:
    text = EXPERTS | {"num_experts": 256, "num_experts_per_tok": 8}
    spec = spec_of("Qwen3_5MoeForCausalLM", intermediate_size=None, **text)
    assert [ffn.expert for _, ffn in spec.layers] == [Glu(512)] * 4
    assert spec.layers[0][1].router.norm == 1.0


def fused_as_qwen3_next(tensors: dict[str, Tensor], stem: str, groups: int) -> dict[str, Tensor]:
    """The four projections of Qwen3.5's delta nets as the two that Qwen3-Next has: the rows of
    each head of keys together."""
    qkv, z, b, a = (tensors.pop(f"{stem}.in_proj_{part}.weight") for part in ("qkv", "z", "b", "a"))
    rest = len(qkv) - len(z)
    parts = (*qkv.split([rest // 2, rest // 2, len(z)]), z)

    def together(*rows: Tensor) -> Tensor:
        return torch.cat([part.unflatten(0, (groups, -1)) for part in rows], 1).flatten(0, 1)

    fused = {"in_proj_qkvz": together(*parts), "in_proj_ba": together(b, a)}
    return tensors | {f"{stem}.{name}.weight": rows for name, rows in fused.items()}


@pytest.mark.row("F07.14")
def test_split_and_fused_projections_are_one_model(tmp_path: Path, driver: Any) -> None:
    """And so are those that have a tensor for each role."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3_5ForCausalLM")
    file, tokens, logits = tmp_path / "model.safetensors", list(range(2, 40)), list[Tensor]()
    split = load_file(file)
    stem = next(name for name in split if name.endswith("layers.0.linear_attn.A_log"))[:-6]
    fused = fused_as_qwen3_next(dict(split), stem, 2)
    alone = {name: rows for name, rows in split.items() if name != f"{stem}.in_proj_qkv.weight"}
    rows = split[f"{stem}.in_proj_qkv.weight"].split([16, 16, 72])
    alone |= {f"{stem}.{p}_proj.weight": r.clone() for p, r in zip("qkv", rows, strict=True)}
    for tensors in (split, fused, alone):
        save_file(tensors, file, metadata={"format": "pt"})
        loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
        logits.append(driver(loaded, 1).step({0: tokens})[0])
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


@pytest.mark.row("F23.06")
def test_kimis_first_config_counts_layers_from_one(spec_of: Any) -> None:
    spec = spec_of("KimiLinearForCausalLM", **KIMI)
    assert kinds(spec) == [*[DeltaNet] * 3, LatentAttention] * 2
    norm = GatedNorm(1e-5, 32, gate_first=False, shared=True, activation="sigmoid")
    assert spec.layers[0][0] == DeltaNet(32, 32, 128, 128, 4, norm, rank=128)
    heads = spec.layers[3][0]
    assert heads.rope is None and heads.scale == pytest.approx(192**-0.5)
    assert [isinstance(ffn, Moe) for _, ffn in spec.layers] == [False] + [True] * 7
    moe = spec.layers[1][1]
    assert (moe.router.top_k, moe.router.score, moe.router.scale) == (8, "sigmoid", 2.446)
    assert moe.shared == Glu(1024) and spec.max_length == 1_048_576


def test_kimis_layers_of_experts_may_be_rarer(spec_of: Any) -> None:
    spec = spec_of("KimiLinearForCausalLM", **KIMI | {"moe_layer_freq": 3})
    assert [layer for layer, (_, ffn) in enumerate(spec.layers) if isinstance(ffn, Moe)] == [3, 6]


def test_kimis_latents_that_turn_are_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="without mla_use_nope"):
        spec_of("KimiLinearForCausalLM", **KIMI | {"mla_use_nope": False})


def test_olmo_hybrid_takes_the_sizes_of_its_delta_nets_from_its_heads(spec_of: Any) -> None:
    spec = spec_of("OlmoHybridForCausalLM", num_attention_heads=4)
    assert kinds(spec) == [DeltaNet] * 3 + [Attention] and spec.style == "by_mixer"
    norm = GatedNorm(1e-5, 4, gate_first=False, shared=True)
    assert spec.layers[0][0] == DeltaNet(4, 4, 12, 24, 4, norm, strength=2.0)
    assert spec.layers[3][0].rope is None
    turned = spec_of("OlmoHybridForCausalLM", rope_parameters={"rope_theta": 5e5})
    assert turned.layers[3][0].rope.base == 5e5
    sure = spec_of("OlmoHybridForCausalLM", linear_allow_neg_eigval=False)
    assert sure.layers[0][0].strength == 1.0
