"""Llama and models that differ in a bias, a norm, a window or names."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import (
    QKV,
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    mlp,
    named,
    rms,
    rotated,
    sliding,
    spelled,
)
from baton_worker.spec import Decoder, Fused, Mask, QkNorm, Scores, Skip, TensorLayout

LAYER = "model.layers.{layer}"
H = "transformer.h.{layer}"


@architecture(
    *("LlamaForCausalLM", "LLaMAForCausalLM", "YiForCausalLM", "AquilaForCausalLM"),
    *("AquilaModel", "SkyworkForCausalLM", "XverseForCausalLM"),
)
def llama(c: Config) -> Decoder:
    """GGUF files of InternLM 3 are of this architecture too, and say each bias by itself."""
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=getattr(c, "attention_out_bias", bias))
    return decoder(c, heads, glu(c, bias=getattr(c, "mlp_bias", False)))


@architecture("HeliumForCausalLM")
def helium(c: Config) -> Decoder:
    """Helium (Kyutai, 2025): neighbouring channels turn."""
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, interleaved=True, base=100_000.0, default_head_dim=128)
    return decoder(c, heads, glu(c, bias=getattr(c, "mlp_bias", False)), norm=rms(c, 1e-8))


@architecture("MistralForCausalLM")
def mistral(c: Config) -> Decoder:
    """GGUF files of Ministral 3 are of this architecture too; its queries grow with their
    position."""
    turned = vars(getattr(c, "rope_parameters", None) or SimpleNamespace())
    scores = Scores()
    if beta := turned.get("llama_4_scaling_beta"):
        floor = float(turned["original_max_position_embeddings"])
        scores = Scores(temperature=(float(beta), floor, 0))
    window = Mask(window=getattr(c, "sliding_window", 4096))
    return decoder(c, gqa(c, mask=window, scores=scores), glu(c))


@architecture("Ministral3ForCausalLM")
def ministral3(c: Config) -> Decoder:
    return mistral(SimpleNamespace(**{"sliding_window": None, "head_dim": 128} | vars(c)))


@architecture("MinistralForCausalLM")
def ministral(c: Config) -> Decoder:
    """Ministral 8B: Mistral whose config lists the types of its layers."""
    window = getattr(c, "sliding_window", 4096)
    kind = "full_attention" if window is None else "sliding_attention"
    kinds = getattr(c, "layer_types", None) or [kind] * c.num_hidden_layers
    windows = {"full_attention": None, "sliding_attention": window}
    return decoder(c, [gqa(c, mask=Mask(windows[kind])) for kind in kinds], glu(c))


@architecture("CwmForCausalLM")
def cwm(c: Config) -> Decoder:
    """Code World Model (arXiv:2510.02387): every fourth layer, from the first, has no window."""
    kinds = getattr(c, "layer_types", None) or [
        "sliding_attention" if layer % 4 else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]
    rope = {} if getattr(c, "rope_scaling", None) else {"rope_parameters": _CWM_ROPE}
    defaults = {"sliding_window": 8192, "head_dim": 128, **rope}
    return ministral(SimpleNamespace(**defaults | vars(c) | {"layer_types": kinds}))


_CWM_ROPE = SimpleNamespace(
    rope_type="llama3",
    rope_theta=1e6,
    factor=16.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
"""The rope of a config that has none."""


@architecture("Qwen2ForCausalLM")
def qwen2(c: Config) -> Decoder:
    return decoder(c, sliding(c, gqa(c, bias=True)), glu(c))


@architecture("MiMoForCausalLM")
def mimo(c: Config) -> Decoder:
    return replace(qwen2(c), tensors=TensorLayout(unused=("model.mtp_layers.",)))


@architecture("Qwen3ForCausalLM")
def qwen3(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(rms(c)), default_head_dim=128)
    return decoder(c, sliding(c, heads), glu(c))


@architecture("SeedOssForCausalLM")
def seed_oss(c: Config) -> Decoder:
    bias, output_bias = getattr(c, "attention_bias", True), getattr(c, "attention_out_bias", False)
    heads = gqa(c, bias=bias, output_bias=output_bias, default_head_dim=128)
    return decoder(c, heads, glu(c, bias=getattr(c, "mlp_bias", False)))


@architecture("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
def ernie(c: Config) -> Decoder:
    bias = getattr(c, "use_bias", False)
    heads = gqa(
        c, bias=bias, output_bias=bias, interleaved=True, base=500_000.0, default_head_dim=128
    )
    return decoder(c, heads, glu(c, bias=bias), tied=True, norm=rms(c, 1e-5))


@architecture("PanguEmbeddedForCausalLM")
def pangu(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", getattr(c, "bias", True))
    return decoder(c, gqa(c, bias=bias, output_bias=bias), glu(c))


@architecture("InternLMForCausalLM")
def internlm(c: Config) -> Decoder:
    """The first InternLM. The base of its rope may have an object of its own, whose dynamic scaling
    changes nothing up to the length of training, which is the longest served."""
    base = getattr(getattr(c, "rotary", None), "base", 10_000.0)
    return pangu(SimpleNamespace(**{"rope_theta": base} | vars(c)))


@architecture("InternLM3ForCausalLM")
def internlm3(c: Config) -> Decoder:
    bias = getattr(c, "bias", False)
    heads = gqa(c, bias=getattr(c, "qkv_bias", False), output_bias=bias)
    return decoder(c, heads, glu(c, bias=bias))


@architecture("HunYuanDenseV1ForCausalLM")
def hunyuan(c: Config) -> Decoder:
    bias, norm = getattr(c, "attention_bias", False), rms(c, 1e-5)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(norm, after_rope=True))
    names = named(LAYER, query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")
    return decoder(c, heads, glu(c), norm=norm, names=names)


@architecture("OrionForCausalLM")
def orion(c: Config) -> Decoder:
    return decoder(c, gqa(c), glu(c), norm=layer_norm(getattr(c, "rms_norm_eps", 1e-5)))


@architecture("SolarForCausalLM")
def solar(c: Config) -> Decoder:
    """Block skip connections: the input of the layers `bskcn_1` (`_2`) is mixed in before `bskcn_3`
    (`_4`), with the second weight of `bskcn_tv`, the one for inference."""
    skips = tuple(
        Skip(source=max(layer for layer in sources if layer < to), to=to, weight=c.bskcn_tv[1])
        for sources, targets in ((c.bskcn_1, c.bskcn_3), (c.bskcn_2, c.bskcn_4))
        for to in targets
        if to < c.num_hidden_layers
    )
    return replace(llama(c), skips=skips)


@architecture("InternLM2ForCausalLM")
def internlm2(c: Config) -> Decoder:
    bias = getattr(c, "bias", False)
    names = named(
        LAYER,
        embedding="model.tok_embeddings",
        head="output",
        mixer_norm="attention_norm",
        output="attention.wo",
        ffn_norm="ffn_norm",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
    )
    qkv = Fused(f"{LAYER}.attention.wqkv", QKV, groups=c.num_key_value_heads)
    heads = gqa(c, bias=bias, output_bias=bias)
    return decoder(c, heads, glu(c), names=names, fused=(qkv,))


@architecture("TeleChat2ForCausalLM")
def telechat2(c: Config) -> Decoder:
    """Key and value alternate head by head in one tensor; `dense` and `down_proj` have biases."""
    c = spelled(
        c,
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        intermediate_size="ffn_hidden_size",
        rms_norm_eps="layer_norm_epsilon",
        max_position_embeddings="seq_length",
    )
    names = named(
        H,
        embedding="transformer.word_embeddings",
        norm="transformer.ln_f",
        mixer_norm="input_layernorm",
        query="self_attention.query",
        output="self_attention.dense",
        ffn_norm="post_attention_layernorm",
        gate="mlp.gate_proj",
        up="mlp.up_proj",
        down="mlp.down_proj",
    )
    heads = gqa(c, output_bias=True)
    key_value = Fused(f"{H}.self_attention.key_value", QKV[1:], groups=heads.num_kv_heads)
    ffn = replace(glu(c, activation="silu"), down_bias=True)
    return decoder(c, heads, ffn, names=names, fused=(key_value,))


@architecture("Fairseq2LlamaForCausalLM")
def fairseq2(c: Config) -> Decoder:
    """fairseq2's format: its own names, and an interleaved rope."""
    names = named(
        "decoder.layers.{layer}",
        embedding="decoder_frontend.embed",
        norm="decoder.layer_norm",
        head="final_proj",
        mixer_norm="self_attn_layer_norm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.output_proj",
        ffn_norm="ffn_layer_norm",
        gate="ffn.gate_proj",
        up="ffn.inner_proj",
        down="ffn.output_proj",
    )
    return decoder(c, gqa(c, interleaved=True), glu(c), names=names)


@architecture("SmolLM3ForCausalLM")
def smollm3(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    heads = sliding(c, gqa(c, base=2_000_000.0, bias=bias, output_bias=bias))
    mixers = [
        mixer if turns else replace(mixer, rope=None)
        for mixer, turns in zip(heads, rotated(c), strict=True)
    ]
    return decoder(c, mixers, glu(c, bias=getattr(c, "mlp_bias", False)), tied=True)


@architecture("Jais2ForCausalLM")
def jais2(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", True)
    ffn = mlp(c, bias=getattr(c, "mlp_bias", True), activation="relu2")
    norm = layer_norm(getattr(c, "layer_norm_eps", 1e-5))
    return decoder(c, gqa(c, bias=bias, output_bias=bias), ffn, norm=norm)


@architecture("ArceeForCausalLM")
def arcee(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    ffn = mlp(c, bias=getattr(c, "mlp_bias", False), activation="relu2")
    return decoder(c, gqa(c, bias=bias, output_bias=bias), ffn, norm=rms(c, 1e-5))
