"""Latent attention: DeepSeek-V2 and V3, and the models built like them."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    named,
    rms,
    rope,
    spelled,
)
from baton_worker.models.families.moe_common import (
    FUSED,
    after_dense,
    draft_layers,
    first,
    no_auxiliary_loss,
    router,
    small,
    sparse_where,
    stacked,
)
from baton_worker.spec import (
    Decoder,
    Embedding,
    Head,
    Indexer,
    LatentAttention,
    Mixer,
    Moe,
    Norm,
    Rope,
    Router,
    ShortcutMoe,
    SparseLatentAttention,
)

_LATENT_NAMES = {
    "query_down": "q_a_proj",
    "query_down_norm": "q_a_layernorm",
    "query_up": "q_b_proj",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_down_norm": "kv_a_layernorm",
    "kv_up": "kv_b_proj",
    "output": "o_proj",
}
INNER_NORM = Norm(1e-6)
"""The low-rank norms have this epsilon; the config's is not used for them."""


def latent(c: Config, *, interleaved: bool = True) -> LatentAttention:
    """The latent attention of the config; YaRN scales its scores once more."""
    turned = rope(c, c.qk_rope_head_dim, interleaved=interleaved)
    scale = (c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5
    return LatentAttention(
        num_heads=c.num_attention_heads,
        kv_rank=c.kv_lora_rank,
        nope_dim=c.qk_nope_head_dim,
        rope_dim=c.qk_rope_head_dim,
        value_dim=getattr(c, "v_head_dim", None) or c.hidden_size // c.num_attention_heads,
        scale=scale * _warmth(turned) ** 2,
        rope=turned,
        norm=INNER_NORM,
        query_rank=getattr(c, "q_lora_rank", None),
        bias=getattr(c, "attention_bias", False),
    )


def _warmth(turned: Rope) -> float:
    """YaRN's attention factor for `mscale_all_dim` (arXiv:2309.00071, as DeepSeek applies it)."""
    values = dict(turned.parameters)
    weight, factor = values.get("mscale_all_dim"), values.get("factor")
    if turned.kind != "yarn" or not isinstance(weight, float | int) or not weight:
        return 1.0
    if not isinstance(factor, float | int):
        raise ModelError("config.json: a rope of the type 'yarn' needs a factor, a number.")
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@architecture("DeepseekV2ForCausalLM")
def deepseek_v2(c: Config) -> Decoder:
    limited = getattr(c, "topk_method", "greedy") == "group_limited_greedy"
    routing = router(
        c,
        norm=None,
        num_groups=c.n_group if limited else 1,
        top_groups=c.topk_group if limited else 1,
        scale=first(c, "routed_scaling_factor", default=1.0),
    )
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(routing, small(c), shared=shared)
    return decoder(c, latent(c), after_dense(c, moe), stacked=FUSED, unused=draft_layers(c))


@architecture("DeepseekV3ForCausalLM")
def deepseek_v3(c: Config) -> Decoder:
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    heads = latent(c, interleaved=getattr(c, "rope_interleave", True))
    every = first(c, "moe_layer_freq", default=1)
    dense = first(c, "first_k_dense_replace", default=3)
    layers = [layer >= dense and layer % every == 0 for layer in range(c.num_hidden_layers)]
    ffns = sparse_where(layers, moe, glu(c))
    return decoder(c, heads, ffns, stacked=FUSED, unused=draft_layers(c))


@architecture("YoutuForCausalLM")
def youtu(c: Config) -> Decoder:
    """Youtu-LLM (arXiv:2512.24618): latents, and no experts."""
    heads = latent(c, interleaved=getattr(c, "rope_interleave", True))
    return decoder(c, heads, glu(c), tied=True)


@architecture("Mistral4ForCausalLM", "MistralLarge3ForCausalLM")
def mistral4(c: Config) -> Decoder:
    """DeepSeek-V3's body with a softmax router, and queries that grow with their position."""
    rope_parameters = vars(getattr(c, "rope_parameters", None) or SimpleNamespace())
    other_keys = ("llama_4_scaling_beta", "partial_rotary_factor", "max_position_embeddings")
    c = SimpleNamespace(**vars(c) | {"partial_rotary_factor": None})
    c.rope_parameters = SimpleNamespace(
        **{k: v for k, v in rope_parameters.items() if k not in other_keys}
    )
    heads = latent(c, interleaved=getattr(c, "rope_interleave", True))
    if beta := rope_parameters.get("llama_4_scaling_beta"):
        floor = float(rope_parameters["original_max_position_embeddings"])
        heads = replace(heads, temperature=(float(beta), floor))
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    routing = no_auxiliary_loss(c, score="softmax", correction=False)
    ffns = after_dense(c, Moe(routing, small(c), shared=shared))
    return decoder(c, heads, ffns, stacked=FUSED)


@architecture("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(c: Config) -> Decoder:
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    heads = latent(c, interleaved=getattr(c, "rope_interleave", True))
    return decoder(
        c,
        heads,
        after_dense(c, moe, 1),
        norm=rms(c, 1e-5),
        stacked=FUSED,
        unused=draft_layers(c),
    )


def _sparse(c: Config, index_heads: int, *, interleaved: bool) -> SparseLatentAttention:
    """Latent attention over indexer-selected KV; `index_heads` is the default."""
    whole = latent(c)
    indexer = Indexer(
        heads=first(c, "index_n_heads", default=index_heads),
        dim=first(c, "index_head_dim", default=128),
        norm=Norm(1e-6, kind="layer", bias=True),
        interleaved=interleaved,
    )
    return SparseLatentAttention(
        **{field.name: getattr(whole, field.name) for field in fields(whole)},
        top_k=first(c, "index_topk", default=2048),
        indexer=indexer,
    )


def _over_chosen_keys(c: Config, heads: list[Mixer], norm: Norm) -> Decoder:
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    ffns = after_dense(c, moe, 3)
    return decoder(c, heads, ffns, norm=norm, stacked=FUSED, unused=draft_layers(c))


@architecture("DeepseekV32ForCausalLM")
def deepseek_v32(c: Config) -> Decoder:
    heads = _sparse(c, 64, interleaved=False)
    return _over_chosen_keys(c, [heads] * c.num_hidden_layers, rms(c))


@architecture("GlmMoeDsaForCausalLM")
def glm_moe_dsa(c: Config) -> Decoder:
    """A layer may reuse the selection of the last layer with an indexer (arXiv:2603.12201)."""
    indexed = _sparse(c, 32, interleaved=True)
    sharing, has_index = replace(indexed, indexer=None), _has_index(c)
    if not has_index[0]:
        raise ModelError(
            "The first layer is to attend to what another one's index has chosen, and there is "
            'none before it: begin indexer_types in config.json with "full".'
        )
    return _over_chosen_keys(c, [indexed if has else sharing for has in has_index], rms(c, 1e-5))


def _has_index(c: Config) -> list[bool]:
    """Per layer: from a list, a string of letters, or a period after the first layers."""
    kinds = first(c, "indexer_types", "index_topk_pattern")
    if kinds is not None:
        return [kind in ("full", "F") for kind in kinds]
    every = max(first(c, "index_topk_freq", default=1), 1)
    offset = first(c, "index_skip_topk_offset", default=2)
    return [max(layer - offset + 1, 0) % every == 0 for layer in range(c.num_hidden_layers)]


@architecture("MiniCPM3ForCausalLM")
def minicpm3(c: Config) -> Decoder:
    depth = first(c, "scale_depth", default=math.sqrt(c.num_hidden_layers))
    base = first(c, "dim_model_base", default=c.hidden_size)
    return decoder(
        c,
        latent(c, interleaved=False),
        glu(c, bias=getattr(c, "mlp_bias", False)),
        tied=True,
        norm=rms(c, 1e-5),
        head=Head(scale=base / c.hidden_size),
        embedding=Embedding(scale=float(getattr(c, "scale_emb", 12))),
        residual_scale=depth / math.sqrt(c.num_hidden_layers),
    )


def _zero_experts(c: Config) -> list[str]:
    """Weights that transformers writes for identity experts."""
    first_zero, count = c.n_routed_experts, first(c, "zero_expert_num", default=0)
    return [
        f"model.layers.{layer}.mlp.experts.{first_zero + expert}."
        for layer in range(c.num_layers)
        for expert in range(count)
    ]


@architecture("LongcatFlashForCausalLM")
def longcat_flash(c: Config) -> Decoder:
    """Two of our layers form one of the checkpoint's: two attentions, two feed-forwards and one
    mixture with identity experts (arXiv:2509.01322)."""
    c = spelled(c, intermediate_size="ffn_hidden_size")
    c.num_hidden_layers = 2 * c.num_layers
    heads = latent(c)
    heads = replace(
        heads,
        scale=heads.scale * math.sqrt(c.hidden_size / c.q_lora_rank),
        latent_scale=math.sqrt(c.hidden_size / c.kv_lora_rank),
    )
    routing = Router(
        c.n_routed_experts,
        c.moe_topk,
        bias=getattr(c, "router_bias", False),
        correction=True,
        scale=c.routed_scaling_factor,
        zero_experts=first(c, "zero_expert_num", default=0),
    )
    forked = ShortcutMoe(glu(c), Moe(routing, small(c, c.expert_ffn_hidden_size)))
    block = "model.layers.{pair}"
    attention = {role: f"self_attn.{{half}}.{name}" for role, name in _LATENT_NAMES.items()}
    ffn = {role: f"mlps.{{half}}.{role}_proj" for role in ("gate", "up", "down")}
    experts = {
        f"expert_{role}": f"mlp.experts.{{expert}}.{role}_proj" for role in ("gate", "up", "down")
    }
    return decoder(
        c,
        heads,
        [forked, glu(c)] * c.num_layers,
        norm=rms(c, 1e-5),
        style="shortcut",
        names=named(
            block,
            mixer_norm="input_layernorm.{half}",
            ffn_norm="post_attention_layernorm.{half}",
            router="mlp.router.classifier",
            router_correction="mlp.router.e_score_correction_bias",
            **attention,
            **ffn,
            **experts,
        ),
        stacked=stacked(f"{block}.mlp.experts"),
        unused=("model.mtp.", *_zero_experts(c)),
    )
