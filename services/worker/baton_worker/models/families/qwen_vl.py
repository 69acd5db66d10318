"""Qwen-VL (arXiv:2308.12966): the first Qwen, a ViT, and a resampler to a fixed number of
vectors."""

from __future__ import annotations

import math
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    QKV,
    Config,
    architecture,
    decoder,
    gqa,
    named,
    rms,
    spelled,
)
from baton_worker.models.families.vision_common import with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Fused,
    Glu,
    Head,
    Mlp,
    Norm,
    Patches,
    Projections,
    Resampler,
    TensorLayout,
    Vision,
    VisionTower,
)

_H = "transformer.h.{layer}"
_VISUAL = "transformer.visual"
_LAYER = f"{_VISUAL}.transformer.resblocks.{{layer}}"
_POOL = f"{_VISUAL}.attn_pool"
_NAMES = {
    "patches": f"{_VISUAL}.conv1",
    "positions": f"{_VISUAL}.positional_embedding",
    "embedding_norm": f"{_VISUAL}.ln_pre",
    "mixer_norm": f"{_LAYER}.ln_1",
    "query": f"{_LAYER}.attn.query",
    "key": f"{_LAYER}.attn.key",
    "value": f"{_LAYER}.attn.value",
    "output": f"{_LAYER}.attn.out_proj",
    "ffn_norm": f"{_LAYER}.ln_2",
    "up": f"{_LAYER}.mlp.c_fc",
    "down": f"{_LAYER}.mlp.c_proj",
}
_RENAMES = (
    (rf"^({_VISUAL}\.positional_embedding)$", r"\1.weight"),
    (rf"^{_VISUAL}\.(ln_post\.|proj$)", rf"{_POOL}.\1"),
    (rf"^{_POOL}\.attn\.in_proj_", f"{_POOL}.attn.in_proj."),
)
_HEAD_DIM = 128
"""Channels of a head of the resampler."""
_AFTER_START = 2
"""The token in the place of an image is so far behind the one before images."""


@architecture("QwenVLForConditionalGeneration")
def qwen_vl(c: Config) -> Decoder:
    """Served up to the length of its training, where neither its dynamic NTK nor its logarithmic
    scale of queries changes anything."""
    text = _text(c)
    v = SimpleNamespace(**{"n_queries": 256, "mlp_ratio": 4.0} | vars(c.visual))
    if v.output_dim != text.hidden:
        raise AttributeError(f"visual.output_dim {v.output_dim} is not hidden_size {text.hidden}")
    norm, heads = Norm(1e-6, "layer", bias=True), max(1, v.output_dim // _HEAD_DIM)
    pool = Resampler(_POOL, v.n_queries, v.width, v.output_dim, heads, norm, stored=True)
    tower = VisionTower(
        stack=_stack(v, norm),
        projector=(pool,),
        image_token=v.image_start_id + _AFTER_START,
        hidden=text.hidden,
    )
    return with_tower(text, tower, _RENAMES)


@architecture("QWenLMHeadModel")
def qwen(c: Config) -> Decoder:
    """Qwen (arXiv:2309.16609). Qwen-VL has published itself under the same name."""
    if hasattr(c, "visual"):
        raise ModelError(
            "This QWenLMHeadModel is a Qwen-VL: its config has the sizes of an encoder. Write "
            '"architectures": ["QwenVLForConditionalGeneration"] in config.json.'
        )
    return _text(c)


def _text(c: Config) -> Decoder:
    c = spelled(c, head_dim="kv_channels", rms_norm_eps="layer_norm_epsilon")
    length = min(c.max_position_embeddings, getattr(c, "seq_length", c.max_position_embeddings))
    bias = not getattr(c, "no_bias", True)
    names = named(
        _H,
        embedding="transformer.wte",
        norm="transformer.ln_f",
        mixer_norm="ln_1",
        output="attn.c_proj",
        ffn_norm="ln_2",
        gate="mlp.w2",
        up="mlp.w1",
        down="mlp.c_proj",
        **{part: f"attn.{part}" for part in QKV},
    )
    base, turned = getattr(c, "rotary_emb_base", 10_000.0), getattr(c, "rotary_pct", 1.0)
    return decoder(
        SimpleNamespace(**vars(c) | {"max_position_embeddings": length}),
        gqa(c, base=base, partial=turned, bias=True, output_bias=bias),
        Glu(c.intermediate_size // 2, bias=bias),
        norm=rms(c),
        names=names,
        fused=(Fused(f"{_H}.attn.c_attn", QKV),),
    )


def _stack(v: SimpleNamespace, norm: Norm) -> Vision:
    """OpenCLIP's ViT without a class token; positions are resized, and each head has its query, key
    and value side by side."""
    dim, side = v.width // v.heads, math.isqrt(v.n_queries)
    attention = Attention(
        v.heads, v.heads, dim, 1 / math.sqrt(dim), None, projections=Projections(True, True)
    )
    roles = tuple((f"pool_{part}", f"{_POOL}.attn.{part}") for part in QKV)
    fused = (
        Fused(f"{_LAYER}.attn.in_proj", QKV, groups=v.heads),
        Fused(f"{_POOL}.attn.in_proj", tuple(role for role, _ in roles)),
    )
    ffn = Mlp(int(v.width * v.mlp_ratio), "gelu", bias=True)
    return Vision(
        hidden=v.width,
        vocab=0,
        layers=((attention, ffn),) * v.layers,
        norm=norm,
        embedding_norm=norm,
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, positions="bicubic", table=side),
        tensors=TensorLayout(names=(*_NAMES.items(), *roles), fused=fused),
    )
