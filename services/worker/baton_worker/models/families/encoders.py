"""BERT and related encoders, which differ in positions and gating, and EmbeddingGemma."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families.common import Config, rope
from baton_worker.models.families.gemma import gemma3
from baton_worker.pooling.labels import num_labels
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Embedding,
    Encoder,
    Ffn,
    Fused,
    Glu,
    Head,
    Mask,
    MegablocksExperts,
    Mixer,
    Mlp,
    Norm,
    Positions,
    Projections,
    Rope,
    TensorLayout,
)

TABLE: dict[str, str] = {
    name: f"{__name__}:{family}"
    for family, names in {
        "bert": ("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
        "roberta": (
            *("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
            *("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
            *("CamembertModel", "CamembertForMaskedLM", "CamembertForSequenceClassification"),
        ),
        "gte": (
            *("GteModel", "GteForMaskedLM", "GteForSequenceClassification"),
            *("GteNewModel", "GteNewForSequenceClassification"),
            *("NewModel", "NewForMaskedLM", "NewForSequenceClassification"),
        ),
        "nomic": ("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForSequenceClassification"),
        "modernbert": (
            *("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
        ),
        "gemma3_text": ("Gemma3TextModel",),
    }.items()
    for name in names
}
"""Architecture name to "module:function"."""

_BERT_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{layer}.attention.self.query",
    "key": "encoder.layer.{layer}.attention.self.key",
    "value": "encoder.layer.{layer}.attention.self.value",
    "output": "encoder.layer.{layer}.attention.output.dense",
    "mixer_norm": "encoder.layer.{layer}.attention.output.LayerNorm",
    "up": "encoder.layer.{layer}.intermediate.dense",
    "down": "encoder.layer.{layer}.output.dense",
    "ffn_norm": "encoder.layer.{layer}.output.LayerNorm",
}
_GTE_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "output": "encoder.layer.{layer}.attention.o_proj",
    "mixer_norm": "encoder.layer.{layer}.attn_ln",
    "down": "encoder.layer.{layer}.mlp.down_proj",
    "ffn_norm": "encoder.layer.{layer}.mlp_ln",
}
_NOMIC_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "emb_ln",
    "output": "encoder.layers.{layer}.attn.out_proj",
    "mixer_norm": "encoder.layers.{layer}.norm1",
    "ffn_norm": "encoder.layers.{layer}.norm2",
}
_GATED = {
    "up": "encoder.layers.{layer}.mlp.fc11",
    "gate": "encoder.layers.{layer}.mlp.fc12",
    "down": "encoder.layers.{layer}.mlp.fc2",
}
_PLAIN = {
    "up": "encoder.layers.{layer}.mlp.fc1",
    "down": "encoder.layers.{layer}.mlp.fc2",
    "router": "encoder.layers.{layer}.mlp.router.layer",
    "experts": "encoder.layers.{layer}.mlp.experts",
}
_UNUSED = ("cls.", "lm_head.", "classifier.", "pooler.", "head.", "decoder.")
"""Heads not used for embedding; the layers of a head in use match first."""


def _attention(c: Config, *, bias: bool, rope: Rope | None = None) -> Attention:
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return Attention(
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_attention_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=rope,
        projections=Projections(bias, output_bias=bias),
    )


def _pooler(prefix: str, c: Config) -> tuple[Dense, ...]:
    """BERT's: tanh of a projection of the first token's state, then the labels."""
    width = c.hidden_size
    return (
        Dense(f"{prefix}.pooler.dense", width, width, activation="tanh"),
        Dense("classifier", width, num_labels(c)),
    )


def _encoder(
    c: Config,
    prefix: str,
    names: dict[str, str],
    attention: Attention,
    ffn: Ffn,
    fused: tuple[Fused, ...] = (),
    **rest: Any,
) -> Encoder:
    """The common body with post-norms."""
    norm = Norm(c.layer_norm_eps, "layer", bias=True)
    tensors = TensorLayout(
        names=tuple((role, f"{prefix}.{name}") for role, name in names.items()),
        fused=fused,
        unused=(
            *(f"{prefix}.embeddings.position_ids", f"{prefix}.pooler."),
            *(*_UNUSED, "embeddings.position_ids"),
        ),
    )
    return Encoder(
        **{
            "hidden": c.hidden_size,
            "vocab": c.vocab_size,
            "layers": ((attention, ffn),) * c.num_hidden_layers,
            "norm": norm,
            "head": Head(tied=True),
            "style": "after",
            "max_length": c.max_position_embeddings,
            "final_norm": False,
            "tensors": tensors,
            "token_types": c.type_vocab_size,
            "embedding_norm": norm,
        }
        | rest
    )


def _learned(c: Config, prefix: str, offset: int, classifier: tuple[Dense, ...]) -> Encoder:
    """Learned positions and a plain feed-forward."""
    kind = getattr(c, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise AttributeError(f"position_embedding_type '{kind}' is not supported, only absolute")
    ffn = Mlp(c.intermediate_size, c.hidden_act, bias=True)
    return _encoder(
        c,
        prefix,
        _BERT_NAMES,
        _attention(c, bias=True),
        ffn,
        embedding=Embedding(positions=Positions(c.max_position_embeddings, offset)),
        max_length=c.max_position_embeddings - offset,
        classifier=classifier,
    )


def bert(c: Config) -> Encoder:
    """BERT (Devlin et al. 2018, arXiv:1810.04805)."""
    return _learned(c, "bert", 0, _pooler("bert", c))


def roberta(c: Config) -> Encoder:
    """RoBERTa (Liu et al. 2019, arXiv:1907.11692): positions start after the padding index."""
    width = c.hidden_size
    head = (
        Dense("classifier.dense", width, width, activation="tanh"),
        Dense("classifier.out_proj", width, num_labels(c)),
    )
    return _learned(c, "roberta", c.pad_token_id + 1, head)


def _rotation(c: Config, base: float) -> Rope:
    """The rotary settings, with the family's default base."""
    rotary = rope(c, c.hidden_size // c.num_attention_heads)
    rope_config = getattr(c, "rope_parameters", None) or getattr(c, "rope_theta", None)
    return rotary if rope_config else replace(rotary, base=base)


def gte(c: Config) -> Encoder:
    """GTE v1.5, mGTE and Snowflake Arctic v2 (Zhang et al. 2024, arXiv:2407.19669), under the name
    of their own code ("new") or of transformers; both fuse projections and gates."""
    prefix = "gte" if c.architectures[0].startswith("Gte") else "new"
    if c.architectures[0].startswith("GteNew"):
        prefix = "new"
    layer = prefix + ".encoder.layer.{layer}"
    return _encoder(
        c,
        prefix,
        _GTE_NAMES,
        _attention(c, bias=True, rope=_rotation(c, 160_000.0)),
        Glu(c.intermediate_size, c.hidden_act, down_bias=True),
        classifier=_pooler(prefix, c),
        fused=(
            Fused(f"{layer}.attention.qkv_proj", ("query", "key", "value")),
            Fused(f"{layer}.mlp.up_gate_proj", ("up", "gate")),
        ),
    )


def nomic(c: Config) -> Encoder:
    """Nomic Embed (Nussbaum et al. 2024, arXiv:2402.01613) and its mixture of experts
    (Nussbaum and Duderstadt 2025, arXiv:2502.07972)."""
    has_code = hasattr(c, "n_embd")
    if has_code:
        c = _gpt2_fields(c)
    bias = getattr(c, "qkv_proj_bias", False)
    prefix = "bert" if has_code else "nomic_bert"
    gated = c.hidden_act == "silu"
    ffn = (
        Glu(c.intermediate_size, "silu", bias=getattr(c, "mlp_fc1_bias", False))
        if gated
        else Mlp(c.intermediate_size, c.hidden_act, bias=getattr(c, "mlp_fc1_bias", False))
    )
    attention = _attention(c, bias=bias, rope=_rotation(c, 1_000.0))
    every = getattr(c, "moe_every_n_layers", 0)
    return _encoder(
        c,
        prefix,
        _NOMIC_NAMES | (_GATED if gated else _PLAIN),
        attention,
        ffn,
        layers=tuple(
            (attention, _experts(c) if every > 0 and layer % every == 1 else ffn)
            for layer in range(c.num_hidden_layers)
        ),
        classifier=_pooler(prefix, c),
        fused=(Fused(prefix + ".encoder.layers.{layer}.attn.Wqkv", ("query", "key", "value")),),
    )


def _experts(c: Config) -> MegablocksExperts:
    if getattr(c, "expert_choice_router", False) or getattr(c, "num_shared_experts", 0):
        raise AttributeError("expert_choice_router and num_shared_experts are not supported")
    return MegablocksExperts(c.num_experts, c.moe_top_k, c.intermediate_size, c.hidden_act)


def _gpt2_fields(c: Config) -> SimpleNamespace:
    """The config of the original code, with GPT-2's field names."""
    if c.prenorm or getattr(c, "rotary_emb_interleaved", False):
        raise AttributeError("prenorm and rotary_emb_interleaved are not supported")
    if getattr(c, "rotary_emb_fraction", 1.0) != 1.0:
        raise AttributeError("rotary_emb_fraction is not supported, only 1.0")
    return SimpleNamespace(
        **vars(c)
        | {
            "hidden_size": c.n_embd,
            "num_attention_heads": c.n_head,
            "num_hidden_layers": c.n_layer,
            "intermediate_size": c.n_inner or 4 * c.n_embd,
            "hidden_act": {"swiglu": "silu"}.get(c.activation_function, c.activation_function),
            "layer_norm_eps": c.layer_norm_epsilon,
            "max_position_embeddings": c.n_positions,
            "rope_theta": c.rotary_emb_base,
        }
    )


def modernbert(c: Config) -> Encoder:
    """ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norms, local attention in most
    layers."""
    heads = _attention(c, bias=c.attention_bias)
    layers = tuple(
        (_modern_attention(c, heads, kind), Glu(c.intermediate_size, _gelu(c), bias=c.mlp_bias))
        for kind in _layer_types(c)
    )
    norm = Norm(c.norm_eps, "layer", bias=c.norm_bias)
    layer = "model.layers.{layer}"
    return Encoder(
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        layers=layers,
        norm=norm,
        head=Head(tied=True),
        tensors=TensorLayout(
            names=(
                ("embedding", "model.embeddings.tok_embeddings"),
                ("embedding_norm", "model.embeddings.norm"),
                ("norm", "model.final_norm"),
                ("mixer_norm", f"{layer}.attn_norm"),
                ("ffn_norm", f"{layer}.mlp_norm"),
                ("output", f"{layer}.attn.Wo"),
                ("down", f"{layer}.mlp.Wo"),
            ),
            fused=(
                Fused(f"{layer}.attn.Wqkv", ("query", "key", "value")),
                Fused(f"{layer}.mlp.Wi", ("gate", "up")),
            ),
            unused=_UNUSED,
        ),
        max_length=c.max_position_embeddings,
        embedding_norm=norm,
        classifier=(
            Dense(
                "head.dense",
                c.hidden_size,
                c.hidden_size,
                bias=getattr(c, "classifier_bias", False),
                activation=getattr(c, "classifier_activation", "gelu"),
                norm=norm,
                norm_name="head.norm",
            ),
            Dense("classifier", c.hidden_size, num_labels(c)),
        ),
        classify_from="mean" if getattr(c, "classifier_pooling", "cls") == "mean" else "first",
        bare_layers=1,
    )


def _gelu(c: Config) -> str:
    kind: str = getattr(c, "hidden_activation", "gelu")
    return kind


def _layer_types(c: Config) -> list[str]:
    every = getattr(c, "global_attn_every_n_layers", 3)
    return getattr(c, "layer_types", None) or [
        "sliding_attention" if layer % every else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]


def _modern_attention(c: Config, heads: Attention, kind: str) -> Attention:
    """Local attention with a small rope base, or global attention with a large one."""
    near = kind == "sliding_attention"
    rope_parameters = getattr(getattr(c, "rope_parameters", None), kind, None)
    base = getattr(rope_parameters, "rope_theta", None)
    if base is None:
        named = getattr(c, "local_rope_theta" if near else "global_rope_theta", None)
        base = named or (10_000.0 if near else 160_000.0)
    scaling = getattr(rope_parameters, "rope_type", "default")
    if scaling != "default":
        raise AttributeError(f"rope_type '{scaling}' is not supported in ModernBERT")
    rotary = Rope(heads.head_dim, float(base), c.max_position_embeddings)
    return replace(heads, rope=rotary, mask=Mask(c.local_attention // 2 if near else None))


def gemma3_text(c: Config) -> Decoder:
    """Gemma 3 without its head. EmbeddingGemma (arXiv:2509.20354) sees whole texts; others are
    causal."""
    decoder = gemma3(SimpleNamespace(**vars(c) | {"use_bidirectional_attention": False}))
    if not getattr(c, "use_bidirectional_attention", False):
        return decoder
    values = {field.name: getattr(decoder, field.name) for field in fields(decoder)}
    layers = tuple((_both_sides(mixer), ffn) for mixer, ffn in decoder.layers)
    return Encoder(**values | {"layers": layers})


def _both_sides(mixer: Mixer | None) -> Mixer | None:
    """Half of a causal window lies on each side."""
    assert isinstance(mixer, Attention)
    if mixer.scores.softcap is not None:
        raise ModelError("Baton cannot cap the scores of an encoder: attn_logit_softcapping.")
    window = mixer.mask.window
    return mixer if window is None else replace(mixer, mask=Mask(window // 2))
