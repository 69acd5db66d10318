"""Differences between the architectures of GGUF files: config fields, and tensor changes made by
llama.cpp's converter.

A row is looked up by `general.architecture`. Constants missing from files are those of llama.cpp's
graphs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.checkpoint.gguf.hybrid_families import HYBRIDS
from baton_worker.checkpoint.gguf.metadata import (
    ABSENT,
    Family,
    Fields,
    Metadata,
    each,
    layer_kinds,
    layer_norm,
    partial,
)
from baton_worker.checkpoint.gguf.moe_families import (
    MIXTURES,
    granite,
    granite_windows,
    latent,
)
from baton_worker.spec import Dense

_GEMMA2_27B, _GEMMA3_27B = 46, 62
"""Layer counts of the models that scale scores by hidden size instead of head size."""
_GEMMA3N_OWN_KV = 20
"""Layers of a Gemma 3n with KV of their own."""
_BAICHUAN_13B = 40
"""Layer count of the Baichuan with ALiBi."""
_MINICPM = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
"""Constants missing from MiniCPM files."""
_POOLING = {1: "mean", 2: "cls", 3: "last"}
"""Values of `pooling_type` to those of the setting."""


def _starcoder2(file: Metadata) -> Fields:
    return layer_norm(file) | {"use_bias": file.has("blk.0.attn_q.bias"), "layer_types": None}


def _command_r(file: Metadata) -> Fields:
    normed = file.has("blk.0.attn_q_norm.weight")
    return layer_norm(file) | {"logit_scale": file.own("logit_scale"), "use_qk_norm": normed}


def _cohere2(file: Metadata) -> Fields:
    every = file.own("attention.sliding_window_pattern", 4)
    return _command_r(file) | {"layer_types": layer_kinds(file), "sliding_window_pattern": every}


def _gemma_scale(file: Metadata, largest: int) -> float:
    hidden, heads = file.own("embedding_length"), file.own("attention.head_count")
    whole: float = hidden / heads
    return whole if file.own("block_count") == largest else file.own("attention.key_length")


def _gemma2(file: Metadata) -> Fields:
    return {
        "layer_types": None,
        "query_pre_attn_scalar": _gemma_scale(file, _GEMMA2_27B),
        "attn_logit_softcapping": file.own("attn_logit_softcapping"),
        "final_logit_softcapping": file.own("final_logit_softcapping"),
    }


def _local_rope(file: Metadata) -> Fields:
    """Windowed layers have a rope of their own, without scaling."""
    local = SimpleNamespace(
        rope_type="default", rope_theta=file.own("rope.freq_base_swa", 10_000.0)
    )
    return {"rope_parameters": SimpleNamespace(full_attention=file.rope(), sliding_attention=local)}


def _gemma3(file: Metadata) -> Fields:
    return _local_rope(file) | {
        "layer_types": None,
        "query_pre_attn_scalar": _gemma_scale(file, _GEMMA3_27B),
        "final_logit_softcapping": file.own("final_logit_softcapping", None),
    }


def _gemma3n(file: Metadata) -> Fields:
    """Older files give neither the sparsity nor how many layers share KV: all but the first 20."""
    shared = max(0, file.own("block_count") - _GEMMA3N_OWN_KV)
    scales = file.own("activation_sparsity_scale", None)
    normal = NormalDist()
    return _local_rope(file) | {
        "layer_types": layer_kinds(file),
        "final_logit_softcapping": file.own("final_logit_softcapping", 30.0),
        "num_kv_shared_layers": file.own("attention.shared_kv_layers", shared),
        "activation_sparsity_pattern": scales and [normal.cdf(scale) for scale in scales],
        "altup_num_inputs": file.own("altup.num_inputs"),
        "altup_active_idx": file.own("altup.active_idx"),
        "hidden_size_per_layer_input": file.own("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": file.rows("per_layer_token_embd"),
        "laurel_rank": file.rows("laurel_l"),
    }


def _gemma4(file: Metadata) -> Fields:
    """Global layers have heads of their own, whose keys may be the values; what rotates of them is
    in a tensor of factors."""
    kinds, count = layer_kinds(file), file.own("block_count")
    if kinds is None or len({*kinds}) < 2:
        raise ModelError(
            "This GGUF file of gemma4 does not list its windowed layers and others: convert the "
            "model again with a new llama.cpp."
        )
    full = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    kv_heads = each(file.own("attention.head_count_kv"), count)
    sizes = each(file.own("feed_forward_length"), count)
    own = {"head_dim": file.own("attention.key_length")}
    layers = {str(n): SimpleNamespace(**own, num_key_value_heads=kv_heads[n]) for n in full}
    experts = file.own("expert_count", 0)
    return _local_rope(file) | {
        "layer_types": kinds,
        "head_dim": file.own("attention.key_length_swa"),
        "num_key_value_heads": kv_heads[kinds.index("sliding_attention")],
        "per_layer_config": SimpleNamespace(**layers),
        "attention_k_eq_v": not file.has(f"blk.{full[0]}.attn_v.weight"),
        "num_kv_shared_layers": file.own("attention.shared_kv_layers", 0),
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": sizes[-1] != sizes[0],
        "hidden_size_per_layer_input": file.own("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": file.rows("per_layer_token_embd"),
        "final_logit_softcapping": file.own("final_logit_softcapping", None),
        "enable_moe_block": experts > 0,
        "num_experts": experts,
        "top_k_experts": file.own("expert_used_count", 0),
        "moe_intermediate_size": file.own("expert_feed_forward_length", 0),
    }


def _stablelm(file: Metadata) -> Fields:
    return {
        **partial(file),
        **layer_norm(file),
        "use_qkv_bias": file.has("blk.0.attn_q.bias"),
        "use_parallel_residual": file.own("use_parallel_residual", False),
    }


def _mistral3(file: Metadata) -> Fields:
    """Mistral Small 3, and Ministral 3, whose queries grow with their position."""
    scale, rope = file.own("attention.temperature_scale", 0.0), file.rope()
    if scale:
        rope.llama_4_scaling_beta, rope.mscale = scale, 1.0
        rope.mscale_all_dim = file.own("rope.scaling.yarn_log_multiplier", 0.0)
    return {"rope_parameters": rope}


def _ernie(file: Metadata) -> Fields:
    return {"use_bias": file.has("blk.0.attn_q.bias")}


def _partial_layer_norm(file: Metadata) -> Fields:
    return partial(file) | layer_norm(file)


def _olmo(file: Metadata) -> Fields:
    return {"clip_qkv": file.own("attention.clamp_kqv", None)}


def _olmo2(file: Metadata) -> Fields:
    """OLMo 3 has the same name, and a window: only the rope of layers without it is scaled."""
    if file.own("attention.sliding_window", None) is None:
        return {}
    base = file.own("rope.freq_base_swa", file.own("rope.freq_base", 10_000.0))
    local = SimpleNamespace(rope_type="default", rope_theta=base)
    ropes = SimpleNamespace(full_attention=file.rope(), sliding_attention=local)
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "layer_types": layer_kinds(file),
        "rope_parameters": ropes,
    }


def _falcon(file: Metadata) -> Fields:
    return layer_norm(file) | {
        "new_decoder_architecture": True,
        "num_kv_heads": file.own("attention.head_count_kv", file.own("attention.head_count")),
        "num_ln_in_parallel_attn": 2 if file.has("blk.0.attn_norm_2.weight") else 1,
        "bias": file.has("blk.0.attn_qkv.bias"),
        "ffn_hidden_size": file.own("feed_forward_length"),
    }


def _gpt2(file: Metadata) -> Fields:
    return layer_norm(file) | {"n_inner": file.own("feed_forward_length")}


def _starcoder(file: Metadata) -> Fields:
    return _gpt2(file) | {"multi_query": file.own("attention.head_count_kv", 1) == 1}


def _gptneox(file: Metadata) -> Fields:
    both = {"use_parallel_residual": file.own("use_parallel_residual", True)}
    return partial(file) | layer_norm(file) | both


def _bloom(file: Metadata) -> Fields:
    return layer_norm(file) | {"seq_length": file.own("context_length")}


def _mpt(file: Metadata) -> Fields:
    attention = SimpleNamespace(
        clip_qkv=file.own("attention.clamp_kqv", None),
        alibi_bias_max=file.own("attention.max_alibi_bias", 8.0),
    )
    ratio = file.own("feed_forward_length") // file.own("embedding_length")
    return layer_norm(file) | {"attn_config": attention, "expansion_ratio": ratio}


def _internlm2(file: Metadata) -> Fields:
    return {"bias": file.has("blk.0.attn_q.bias")}


def _minicpm(file: Metadata) -> Fields:
    hidden, layers = file.own("embedding_length"), file.own("block_count")
    usual = _MINICPM["scale_depth"] / math.sqrt(layers)
    return {
        "scale_emb": file.own("embedding_scale", _MINICPM["scale_emb"]),
        "scale_depth": file.own("residual_scale", usual) * math.sqrt(layers),
        "dim_model_base": hidden / file.own("logit_scale", hidden / _MINICPM["dim_model_base"]),
    }


def _minicpm3(file: Metadata) -> Fields:
    heads, sizes = file.own("attention.head_count"), latent(file)
    sizes["v_head_dim"] = file.rows("attn_kv_b") // heads - sizes["qk_nope_head_dim"]
    return sizes | _MINICPM


def _orion(file: Metadata) -> Fields:
    return {"rms_norm_eps": file.own("attention.layer_norm_epsilon")}


def _baichuan(file: Metadata) -> Fields:
    """The head of Baichuan 2 has unit rows; rows that a file already divided stay unchanged."""
    if file.own("block_count") != _BAICHUAN_13B:
        return {}
    return {
        "max_position_embeddings": ABSENT,
        "model_max_length": file.own("context_length"),
    }


def _apertus(file: Metadata) -> Fields:
    """The parameters of the activation in each layer."""
    names = ("alpha_p", "alpha_n", "beta", "eps")
    layers = zip(*(file.listed(f"xielu.{name}") for name in names), strict=True)
    return {"xielu_parameters": [list(values) for values in layers]}


def _qwen(file: Metadata) -> Fields:
    """New files have the epsilon of a LayerNorm for that of RMS norms."""
    rms = file.own("attention.layer_norm_rms_epsilon", None)
    return {"rms_norm_eps": rms or file.own("attention.layer_norm_epsilon")}


def _plamo3(file: Metadata) -> Fields:
    """All norms are stored as factors."""
    return {
        "layer_types": None,
        "window_size": file.own("attention.sliding_window", None),
        "sliding_window_pattern": file.own("attention.sliding_window_pattern", 8),
        "rope_parameters": None,
        "rope_scaling": file.rope(),
        "rope_local_theta": file.own("rope.freq_base_swa", 10_000.0),
        "post_norm_offset": 1.0,
    }


def _exaone4(file: Metadata) -> Fields:
    return {"layer_types": layer_kinds(file)}


def _mamba(file: Metadata) -> Fields:
    """FalconMamba uses the same name. Files do not give the context length."""
    norms = file.own("ssm.dt_b_c_rms", False)
    return {
        "architectures": ["FalconMambaForCausalLM" if norms else "MambaForCausalLM"],
        "max_position_embeddings": ABSENT,
        "layer_norm_epsilon": file.own("attention.layer_norm_rms_epsilon"),
        "expand": file.own("ssm.inner_size") / file.own("embedding_length"),
        "state_size": file.own("ssm.state_size"),
        "time_step_rank": file.own("ssm.time_step_rank"),
        "conv_kernel": file.own("ssm.conv_kernel"),
        "use_bias": file.has("blk.0.ssm_in.bias"),
        "use_conv_bias": file.has("blk.0.ssm_conv1d.bias"),
    }


def _deci(file: Metadata) -> Fields:
    """Layers differ in head counts and sizes; zero query heads mean no attention, size zero
    no ffn."""
    count = file.own("block_count")
    heads = each(file.own("attention.head_count"), count)
    kv_heads = each(file.own("attention.head_count_kv", heads), count)
    sizes = each(file.own("feed_forward_length"), count)
    if any(
        num_heads and not num_kv_heads
        for num_heads, num_kv_heads in zip(heads, kv_heads, strict=True)
    ):
        raise ModelError("This GGUF file of deci has linear layers for attention: not supported.")
    blocks = [
        SimpleNamespace(
            attention=SimpleNamespace(
                no_op=not num_heads,
                n_heads_in_group=num_heads // num_kv_heads if num_kv_heads else 0,
            ),
            ffn=SimpleNamespace(no_op=not size, intermediate_size=size),
        )
        for num_heads, num_kv_heads, size in zip(heads, kv_heads, sizes, strict=True)
    ]
    return {"block_configs": blocks, "num_attention_heads": max(heads)}


def _encoder(file: Metadata) -> Fields:
    pooling = _POOLING.get(file.own("pooling_type", 0), "")
    return layer_norm(file) | {"pooling_mode": pooling}


def _bert(file: Metadata) -> Fields:
    return _encoder(file) | {
        "type_vocab_size": file.rows("token_types"),
        "hidden_act": "gelu",
        "pad_token_id": 0,
    }


def _gemma_embedding(file: Metadata) -> Fields:
    """EmbeddingGemma; its dense layers are there if the converter was asked for them."""
    dense = [
        Dense(part, file.own(f"{part}_feat_in"), file.own(f"{part}_feat_out"), bias=False)
        for part in ("dense_2", "dense_3")
        if file.has(f"{part}.weight")
    ]
    return _gemma3(file) | {
        "layer_types": layer_kinds(file),
        "use_bidirectional_attention": True,
        "pooling_mode": _POOLING.get(file.own("pooling_type", 0), ""),
        "dense": tuple(dense),
    }


def _nomic(file: Metadata) -> Fields:
    return _encoder(file) | {
        "type_vocab_size": file.rows("token_types"),
        "hidden_act": "silu",
        "qkv_proj_bias": file.has("blk.0.attn_qkv.bias"),
        "mlp_fc1_bias": file.has("blk.0.ffn_up.bias"),
    }


def _modern_bert(file: Metadata) -> Fields:
    """Global attention in periodic or listed layers."""
    pattern = file.own("attention.sliding_window_pattern", 3)
    return _encoder(file) | {
        "norm_bias": file.has("output_norm.bias"),
        "local_attention": file.own("attention.sliding_window"),
        "layer_types": layer_kinds(file),
        "global_attn_every_n_layers": pattern,
        "rope_parameters": None,
        "global_rope_theta": file.own("rope.freq_base", 160_000.0),
        "local_rope_theta": file.own("rope.freq_base_swa", 10_000.0),
    }


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", permuted=True),  # Mistral is written as llama too
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "arcee": Family("ArceeForCausalLM", permuted=True),
    "granite": Family("GraniteForCausalLM", granite, permuted=True),
    "granite_swa": Family(
        "GraniteSWAForCausalLM", granite_windows, permuted=True, names_of="granitehybrid"
    ),
    "olmo": Family("OlmoForCausalLM", _olmo, permuted=True),
    "olmo2": Family("Olmo2ForCausalLM", _olmo2),
    "seed_oss": Family("SeedOssForCausalLM"),
    "starcoder2": Family("Starcoder2ForCausalLM", _starcoder2),
    "command-r": Family("CohereForCausalLM", _command_r),
    "cohere2": Family("Cohere2ForCausalLM", _cohere2),
    "smollm3": Family("SmolLM3ForCausalLM", permuted=True),
    "jais2": Family("Jais2ForCausalLM", layer_norm),
    "phi2": Family("PhiForCausalLM", _partial_layer_norm),
    "phi3": Family("Phi3ForCausalLM", partial),
    "chatglm": Family("GlmForCausalLM", partial),  # ChatGLM2 and later, too
    "glm4": Family("Glm4ForCausalLM", partial),
    "stablelm": Family("StableLmForCausalLM", _stablelm),
    "ernie4_5": Family("Ernie4_5ForCausalLM", _ernie),
    "hunyuan-dense": Family("HunYuanDenseV1ForCausalLM"),
    "nemotron": Family("NemotronForCausalLM", _partial_layer_norm, norms_plus_one=True),
    "gemma": Family("GemmaForCausalLM", norms_plus_one=True),
    "gemma2": Family("Gemma2ForCausalLM", _gemma2, norms_plus_one=True),
    "gemma3": Family("Gemma3ForCausalLM", _gemma3, norms_plus_one=True),
    "gemma3n": Family("Gemma3nForCausalLM", _gemma3n),
    "gemma4": Family("Gemma4ForCausalLM", _gemma4, per_layer=True, scaled_routers=True),
    "falcon": Family("FalconForCausalLM", _falcon),
    "gpt2": Family("GPT2LMHeadModel", _gpt2),
    "starcoder": Family("GPTBigCodeForCausalLM", _starcoder),
    "gptneox": Family("GPTNeoXForCausalLM", _gptneox),
    "bloom": Family("BloomForCausalLM", _bloom),
    "mpt": Family("MptForCausalLM", _mpt),
    "internlm2": Family("InternLM2ForCausalLM", _internlm2, permuted=True),
    "minicpm": Family("MiniCPMForCausalLM", _minicpm, permuted=True),
    "minicpm3": Family("MiniCPM3ForCausalLM", _minicpm3),
    "orion": Family("OrionForCausalLM", _orion),
    "baichuan": Family("BaichuanForCausalLM", _baichuan, permuted=True),
    "xverse": Family("LlamaForCausalLM", permuted=True),
    "qwen": Family("QWenLMHeadModel", _qwen),
    "plamo3": Family("Plamo3ForCausalLM", _plamo3, norms_plus_one=True),
    "apertus": Family("ApertusForCausalLM", _apertus),
    "exaone": Family("ExaoneForCausalLM"),
    "exaone4": Family("Exaone4ForCausalLM", _exaone4),
    "pangu-embedded": Family("PanguEmbeddedForCausalLM"),
    # Language models of multimodal ones.
    "qwen2vl": Family("Qwen2ForCausalLM"),
    "qwen3vl": Family("Qwen3ForCausalLM"),
    "hunyuan_vl": Family("HunYuanDenseV1ForCausalLM"),
    "mistral3": Family("MistralForCausalLM", _mistral3, permuted=True),
    "deci": Family("DeciLMForCausalLM", _deci, permuted=True, per_layer=True),
    "mamba": Family("MambaForCausalLM", _mamba),
    "bert": Family("BertModel", _bert),
    "nomic-bert": Family("NomicBertModel", _nomic),
    "modern-bert": Family("ModernBertModel", _modern_bert),
    "gemma-embedding": Family("Gemma3TextModel", _gemma_embedding, norms_plus_one=True),
    **MIXTURES,
    **HYBRIDS,
}
"""By `general.architecture`."""
REFUSED: dict[str, str] = {
    "clip": (
        "is an encoder of images or sounds (mmproj) without a language model: serve the GGUF file "
        "of the language model, with this file beside it"
    ),
    "nomic-bert-moe": "is served from the safetensors checkpoint only",
}
"""Architectures that are served, but not from GGUF, and why."""
