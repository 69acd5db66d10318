"""GPT-2 and its successors: LayerNorm with bias, plain feed-forwards, fused checkpoints."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    QKV,
    Config,
    alibi,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    mlp,
    named,
    rms,
    spelled,
)
from baton_worker.spec import (
    Decoder,
    Embedding,
    Fused,
    Head,
    Mask,
    Mlp,
    Positions,
    QkNorm,
    Scores,
)

H = "transformer.h.{layer}"
LAYER = "model.layers.{layer}"
_SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""GPT-2's names of common fields."""


def _gpt2_scales(c: Config) -> list[float]:
    """The scale of each layer's scores."""
    whole = getattr(c, "scale_attn_weights", True)
    scale = (c.hidden_size / c.num_attention_heads) ** -0.5 if whole else 1.0
    inverse = getattr(c, "scale_attn_by_inverse_layer_idx", False)
    return [scale / (layer + 1) if inverse else scale for layer in range(c.num_hidden_layers)]


@architecture("GPT2LMHeadModel")
def gpt2(c: Config) -> Decoder:
    """Weights are stored as [in, out], as in GPT-2's `Conv1D`."""
    c = spelled(c, **_SPELLINGS)
    names = named(
        H,
        embedding="transformer.wte",
        positions="transformer.wpe",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        output="attn.output",
        ffn_norm="ln_2",
        up="mlp.up",
        down="mlp.down",
    )
    stored = {"attn.c_attn": QKV, "attn.c_proj": ("output",), "mlp.c_fc": ("up",)}
    stored["mlp.c_proj"] = ("down",)
    return decoder(
        c,
        [gqa(c, rope=None, bias=True, output_bias=True, scale=scale) for scale in _gpt2_scales(c)],
        _gelu(c, getattr(c, "n_inner", None)),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        embedding=Embedding(positions=Positions(c.max_position_embeddings)),
        names=names,
        fused=tuple(Fused(f"{H}.{name}", parts, transposed=True) for name, parts in stored.items()),
    )


@architecture("OpenAIGPTLMHeadModel")
def openai_gpt(c: Config) -> Decoder:
    """The first GPT (Radford et al. 2018): GPT-2 with norms after each half, and none behind the
    layers."""
    activation = getattr(c, "afn", "gelu")
    spelling = {"activation_function": "gelu_new" if activation == "gelu" else activation}
    whole = gpt2(SimpleNamespace(**vars(c) | spelling))
    names = {"embedding": "transformer.tokens_embed", "positions": "transformer.positions_embed"}
    tensors = replace(whole.tensors, names=(*whole.tensors.names, *names.items()))
    return replace(whole, style="after", final_norm=False, tensors=tensors)


@architecture("GPTJForCausalLM")
def gptj(c: Config) -> Decoder:
    """GPT-J-6B: one norm before mixer and ffn in parallel, whose projections have no biases."""
    c = spelled(c, **_SPELLINGS)
    names = named(
        H,
        embedding="transformer.wte",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        **{role: f"attn.{role[0]}_proj" for role in QKV},
        output="attn.out_proj",
        up="mlp.fc_in",
        down="mlp.fc_out",
    )
    turned = getattr(c, "rotary_dim", 64) * c.num_attention_heads / c.hidden_size
    return decoder(
        c,
        gqa(c, partial=turned, interleaved=True, num_kv_heads=c.num_attention_heads),
        _gelu(c, getattr(c, "n_inner", None)),
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        style="parallel",
        head=Head(bias=True),
        names=names,
    )


@architecture("CodeGenForCausalLM")
def codegen(c: Config) -> Decoder:
    """CodeGen (arXiv:2203.13474): GPT-J with heads in four groups, for as many accelerators."""
    stem = f"{H}.attn"
    whole = gptj(c)
    tensors = replace(
        whole.tensors,
        names=(*whole.tensors.names, ("output", f"{stem}.out_proj")),
        fused=(Fused(f"{stem}.qkv_proj", ("query", "value", "key"), groups=4),),
    )
    return replace(whole, tensors=tensors)


@architecture("GPTBigCodeForCausalLM")
def gpt_bigcode(c: Config) -> Decoder:
    """StarCoder (arXiv:2305.06161): GPT-2 with one KV head for all queries."""
    c = spelled(c, **_SPELLINGS)
    single, heads = getattr(c, "multi_query", True), c.num_attention_heads
    names = named(
        H,
        embedding="transformer.wte",
        positions="transformer.wpe",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        output="attn.c_proj",
        ffn_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
    )
    mixer = gqa(c, rope=None, bias=True, output_bias=True, num_kv_heads=1 if single else heads)
    scaled = getattr(c, "scale_attn_weights", True)
    return decoder(
        c,
        mixer if scaled else replace(mixer, scale=1.0),
        _gelu(c, getattr(c, "n_inner", None), "gelu_pytorch_tanh"),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        embedding=Embedding(positions=Positions(c.max_position_embeddings)),
        names=names,
        fused=(Fused(f"{H}.attn.c_attn", QKV, groups=1 if single else heads),),
    )


@architecture("GPTNeoForCausalLM")
def gpt_neo(c: Config) -> Decoder:
    """GPT-Neo: scores without a scale, and windows in some layers."""
    c = spelled(c, num_attention_heads="num_heads", num_hidden_layers="num_layers")
    names = named(
        H,
        embedding="transformer.wte",
        positions="transformer.wpe",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        **{role: f"attn.attention.{role[0]}_proj" for role in QKV},
        output="attn.attention.out_proj",
        ffn_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
    )
    heads = c.num_attention_heads
    whole = gqa(c, rope=None, output_bias=True, scale=1.0, num_kv_heads=heads)
    windows = {"global": None, "local": getattr(c, "window_size", 256)}
    types = getattr(c, "attention_types", [[["global", "local"], 12]])
    kinds = [kind for group, times in types for _ in range(times) for kind in group]
    return decoder(
        c,
        [replace(whole, mask=Mask(windows[kind])) for kind in kinds],
        _gelu(c, getattr(c, "intermediate_size", None)),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        embedding=Embedding(positions=Positions(c.max_position_embeddings)),
        names=names,
    )


def _gelu(c: Config, size: int | None, activation: str = "gelu_new") -> Mlp:
    """The feed-forward of GPT-2 and its successors, by default of four times the width;
    `activation` is the architecture's default."""
    return Mlp(size or 4 * c.hidden_size, getattr(c, "activation_function", activation), bias=True)


NEOX = {
    "mixer_norm": "input_layernorm",
    "output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
    "head": "embed_out",
}
"""Names under the stem of a GPT-NeoX."""


@architecture("GPTNeoXForCausalLM")
def gpt_neox(c: Config) -> Decoder:
    """GPT-NeoX-20B (arXiv:2204.06745): mixer and ffn in parallel, each with its own norm. As in
    transformers, base and share of the rope have names of its own outside of its parameters."""
    ignored = ("rope_theta", "partial_rotary_factor")
    c = SimpleNamespace(**{name: value for name, value in vars(c).items() if name not in ignored})
    bias = getattr(c, "attention_bias", True)
    stem = "gpt_neox.layers.{layer}"
    names = named(
        stem,
        embedding="gpt_neox.embed_in",
        norm="gpt_neox.final_layer_norm",
        **NEOX,
    )
    heads = gqa(
        c,
        partial=getattr(c, "rotary_pct", 0.25),
        base=getattr(c, "rotary_emb_base", 10_000.0),
        bias=bias,
        output_bias=bias,
    )
    return decoder(
        c,
        heads,
        mlp(c),
        norm=layer_norm(getattr(c, "layer_norm_eps", 1e-5)),
        style="parallel_two_norms" if getattr(c, "use_parallel_residual", True) else "pre",
        names=names,
        fused=(Fused(f"{stem}.attention.query_key_value", QKV, groups=c.num_attention_heads),),
    )


@architecture("OPTForCausalLM")
def opt(c: Config) -> Decoder:
    """OPT (arXiv:2205.01068); the 350m model has its norms after the addition."""
    bias = getattr(c, "enable_bias", True)
    affine = getattr(c, "layer_norm_elementwise_affine", True)
    before = getattr(c, "do_layer_norm_before", True)
    stem = "model.decoder"
    names = named(
        stem + ".layers.{layer}",
        embedding=f"{stem}.embed_tokens",
        positions=f"{stem}.embed_positions",
        project_in=f"{stem}.project_in",
        project_out=f"{stem}.project_out",
        norm=f"{stem}.final_layer_norm",
        mixer_norm="self_attn_layer_norm",
        query="self_attn.q_proj",
        key="self_attn.k_proj",
        value="self_attn.v_proj",
        output="self_attn.out_proj",
        ffn_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    )
    positions = Positions(c.max_position_embeddings + 2, offset=2)
    return decoder(
        c,
        gqa(c, rope=None, bias=bias, output_bias=bias),
        Mlp(c.ffn_dim, getattr(c, "activation_function", "relu"), bias),
        tied=True,
        norm=layer_norm(1e-5, scaled=affine, bias=affine),
        style="pre" if before else "after",
        final_norm=before and not getattr(c, "_remove_final_layer_norm", False),
        embedding=Embedding(positions=positions, width=getattr(c, "word_embed_proj_dim", None)),
        names=names,
    )


@architecture("BioGptForCausalLM")
def biogpt(c: Config) -> Decoder:
    """BioGPT (doi:10.1093/bib/bbac409): OPT's body with scaled embeddings."""
    stem = "biogpt"
    names = named(
        stem + ".layers.{layer}",
        embedding=f"{stem}.embed_tokens",
        positions=f"{stem}.embed_positions",
        norm=f"{stem}.layer_norm",
        head="output_projection",
        mixer_norm="self_attn_layer_norm",
        output="self_attn.out_proj",
        ffn_norm="final_layer_norm",
        up="fc1",
        down="fc2",
        **{role: f"self_attn.{role[0]}_proj" for role in QKV},
    )
    scale = c.hidden_size**0.5 if getattr(c, "scale_embedding", True) else 1.0
    return decoder(
        c,
        gqa(c, rope=None, bias=True, output_bias=True, num_kv_heads=c.num_attention_heads),
        mlp(c),
        tied=True,
        norm=layer_norm(1e-5),
        embedding=Embedding(
            scale=scale, positions=Positions(c.max_position_embeddings + 2, offset=2)
        ),
        names=names,
    )


@architecture("GPTNeoXJapaneseForCausalLM")
def gpt_neox_japanese(c: Config) -> Decoder:
    """GPT NeoX Japanese: halves in turn, and one bias, behind the attention of the last layer."""
    body = "gpt_neox_japanese"
    stem = body + ".layers.{layer}"
    names = named(stem, embedding=f"{body}.embed_in", norm=f"{body}.final_layer_norm", **NEOX)
    width = int(c.hidden_size * getattr(c, "intermediate_multiple_size", 4))
    turned, base = getattr(c, "rotary_pct", 1.0), getattr(c, "rotary_emb_base", 10_000.0)
    heads = gqa(c, partial=turned, base=base, num_kv_heads=c.num_attention_heads)
    last = replace(heads, projections=replace(heads.projections, output_bias=True))
    return decoder(
        c,
        [heads] * (c.num_hidden_layers - 1) + [last],
        Mlp(width, getattr(c, "hidden_act", "gelu")),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_eps", 1e-5)),
        names=names,
        fused=(Fused(f"{stem}.attention.query_key_value", QKV, groups=c.num_attention_heads),),
        renames=((r"\.attention\.dense_bias$", ".attention.dense.bias"),),
    )


@architecture("XGLMForCausalLM")
def xglm(c: Config) -> Decoder:
    """XGLM (arXiv:2112.10668): OPT's body with scaled embeddings and computed positions."""
    if getattr(c, "add_cross_attention", False):
        raise ModelError("add_cross_attention is not served: XGLM has no encoder to attend to.")
    if getattr(c, "pad_token_id", 1) not in (None, 0, 1):
        raise ModelError(f"pad_token_id {c.pad_token_id} blanks out a position: set it to 1.")
    sizes = {"hidden_size": "d_model", "intermediate_size": "ffn_dim"}
    counts = {"num_hidden_layers": "num_layers", "num_attention_heads": "attention_heads"}
    c = spelled(c, **sizes, **counts, hidden_act="activation_function")
    names = named(
        LAYER,
        norm="model.layer_norm",
        mixer_norm="self_attn_layer_norm",
        output="self_attn.out_proj",
        ffn_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    )
    scale = c.hidden_size**0.5 if getattr(c, "scale_embedding", True) else 1.0
    places = Positions(c.max_position_embeddings + 2, offset=2, waves=True)
    return decoder(
        c,
        gqa(c, rope=None, bias=True, output_bias=True, num_kv_heads=c.num_attention_heads),
        mlp(c),
        tied=True,
        norm=layer_norm(1e-5),
        embedding=Embedding(scale=scale, positions=places),
        names=names,
        unused=("model.embed_positions.",),
    )


BLOOM = named(
    H,
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    norm="transformer.ln_f",
    mixer_norm="input_layernorm",
    output="self_attention.dense",
    ffn_norm="post_attention_layernorm",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
BLOOM_QKV = f"{H}.self_attention.query_key_value"


@architecture("BloomForCausalLM")
def bloom(c: Config) -> Decoder:
    """BLOOM (arXiv:2211.05100); ALiBi has no maximum length, 2048 is the trained one."""
    c = spelled(c, num_attention_heads="n_head", num_hidden_layers="n_layer", hidden_size="n_embed")
    c.max_position_embeddings = getattr(c, "seq_length", 2048)
    norm = layer_norm(getattr(c, "layer_norm_epsilon", 1e-5))
    normed = getattr(c, "apply_residual_connection_post_layernorm", False)
    slopes = alibi(c.num_attention_heads)
    return decoder(
        c,
        gqa(c, rope=None, scores=Scores(slopes=slopes), bias=True, output_bias=True),
        Mlp(4 * c.hidden_size, "gelu_new", bias=True),
        tied=True,
        norm=norm,
        style="normed" if normed else "pre",
        embedding=Embedding(norm=norm),
        names=BLOOM,
        fused=(Fused(BLOOM_QKV, QKV, groups=c.num_attention_heads),),
    )


@architecture("FalconForCausalLM", "RWForCausalLM")
def falcon(c: Config) -> Decoder:
    """Falcon (arXiv:2311.16867): one KV head, one per group in the newer form, or one per head.

    ALiBi slopes, if any, are divided by sqrt(head_dim) like the scores.
    """
    c = spelled(
        c,
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        hidden_size="n_embed",
        num_kv_heads="n_head_kv",
    )
    heads, new = c.num_attention_heads, getattr(c, "new_decoder_architecture", False)
    single = getattr(c, "multi_query", True) and not new
    kv_heads = 1 if single else getattr(c, "num_kv_heads", None) or heads
    has_alibi, bias = getattr(c, "alibi", False), getattr(c, "bias", False)
    c.max_position_embeddings = getattr(c, "max_position_embeddings", 2048)
    parallel = getattr(c, "parallel_attn", True)
    two_norms = new and (getattr(c, "num_ln_in_parallel_attn", None) or 2) == 2
    scale = (c.hidden_size // heads) ** -0.5
    attention = gqa(c, num_kv_heads=kv_heads, bias=bias, output_bias=bias)
    if has_alibi:
        slopes = tuple(scale * slope for slope in alibi(heads))
        attention = replace(attention, rope=None, scores=Scores(slopes=slopes))
    norms = {"mixer_norm": "ln_attn", "ffn_norm": "ln_mlp"} if parallel and two_norms else {}
    pairs = "parallel_two_norms" if two_norms else "parallel"
    ffn_size = getattr(c, "ffn_hidden_size", None) or 4 * c.hidden_size
    return decoder(
        c,
        attention,
        Mlp(ffn_size, getattr(c, "activation", "gelu"), bias),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5)),
        style=pairs if parallel else "pre",
        names=BLOOM + named(H, **norms),
        fused=(Fused(BLOOM_QKV, QKV, groups=kv_heads),),
    )


@architecture("MPTForCausalLM", "MptForCausalLM")
def mpt(c: Config) -> Decoder:
    """MPT: ALiBi, no bias anywhere."""
    c = spelled(
        c,
        hidden_size="d_model",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        max_position_embeddings="max_seq_len",
    )
    attention = getattr(c, "attn_config", None)
    slopes = alibi(c.num_attention_heads, getattr(attention, "alibi_bias_max", 8))
    scale = getattr(attention, "softmax_scale", None)
    stem = "transformer.blocks.{layer}"
    names = named(
        stem,
        embedding="transformer.wte",
        norm="transformer.norm_f",
        mixer_norm="norm_1",
        output="attn.out_proj",
        ffn_norm="norm_2",
        up="ffn.up_proj",
        down="ffn.down_proj",
    )
    return decoder(
        c,
        gqa(
            c,
            rope=None,
            scores=Scores(slopes=slopes),
            clip=getattr(attention, "clip_qkv", None),
            **{"scale": scale} if scale else {},
        ),
        Mlp(getattr(c, "expansion_ratio", 4) * c.hidden_size, "gelu"),
        tied=True,
        norm=layer_norm(getattr(c, "layer_norm_epsilon", 1e-5), bias=False),
        names=names,
        fused=(Fused(f"{stem}.attn.Wqkv", QKV),),
    )


@architecture("Starcoder2ForCausalLM")
def starcoder2(c: Config) -> Decoder:
    bias = getattr(c, "use_bias", True)
    heads = gqa(
        c, bias=bias, output_bias=bias, mask=Mask(window=getattr(c, "sliding_window", None))
    )
    return decoder(
        c,
        heads,
        mlp(c, bias=bias, activation="gelu_pytorch_tanh"),
        tied=True,
        norm=layer_norm(getattr(c, "norm_epsilon", 1e-5)),
        names=named(LAYER, up="mlp.c_fc", down="mlp.c_proj"),
    )


@architecture("NanoChatForCausalLM")
def nanochat(c: Config) -> Decoder:
    """nanochat: no norm has a weight, heads turn backwards, and are normed after that."""
    norm = rms(c, scaled=False)
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(norm, after_rope=True))
    assert heads.rope is not None
    if heads.rope.kind != "default":
        raise ModelError(
            f"A nanochat whose rope is scaled ('{heads.rope.kind}') is not supported: its heads "
            "turn backwards. Remove rope_scaling from config.json."
        )
    return decoder(
        c,
        replace(heads, rope=replace(heads.rope, kind="backwards")),
        mlp(c, bias=False, activation="relu2"),
        norm=norm,
        embedding=Embedding(norm=norm),
        head=Head(softcap=getattr(c, "final_logit_softcapping", 15.0)),
        names=named(LAYER, up="mlp.fc1", down="mlp.fc2"),
    )


@architecture("PersimmonForCausalLM")
def persimmon(c: Config) -> Decoder:
    """Persimmon-8B: every head's q and k through one LayerNorm, then half of it rotated."""
    norm = layer_norm(getattr(c, "layer_norm_eps", 1e-5))
    qk_norm = QkNorm(norm) if getattr(c, "qk_layernorm", True) else None
    heads = gqa(c, partial=0.5, bias=True, output_bias=True, qk_norm=qk_norm)
    names = named(
        LAYER,
        norm="model.final_layernorm",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        output="self_attn.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    )
    qkv = Fused(f"{LAYER}.self_attn.query_key_value", QKV, groups=c.num_attention_heads)
    ffn = mlp(c, activation="relu2")
    return decoder(c, heads, ffn, norm=norm, names=names, fused=(qkv,))


@architecture("StableLmForCausalLM", "StableLMEpochForCausalLM")
def stablelm(c: Config) -> Decoder:
    eps: float = getattr(c, "layer_norm_eps", getattr(c, "norm_eps", 1e-5))
    each = QkNorm(layer_norm(eps, bias=False), over="each")
    heads = gqa(
        c,
        partial=getattr(c, "rope_pct", 0.25),
        bias=getattr(c, "use_qkv_bias", False),
        qk_norm=each if getattr(c, "qk_layernorm", False) else None,
    )
    names = named(
        LAYER,
        query_norm="self_attn.q_layernorm.norms.{head}",
        key_norm="self_attn.k_layernorm.norms.{head}",
    )
    style = "parallel" if getattr(c, "use_parallel_residual", False) else "pre"
    return decoder(c, heads, glu(c), norm=layer_norm(eps), style=style, names=names)
