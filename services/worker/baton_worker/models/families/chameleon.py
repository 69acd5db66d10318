"""Chameleon (arXiv:2405.09818): images are tokens of the vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture, decoder, glu, gqa, layer_norm
from baton_worker.spec import Decoder, QkNorm, VqTower

_VQ: dict[str, Any] = {
    "resolution": 512,
    "base_channels": 128,
    "channel_multiplier": [1, 1, 2, 2, 4],
    "attn_resolutions": None,
    "attn_type": "vanilla",
    "num_res_blocks": 2,
    "latent_channels": 256,
    "embed_dim": 256,
    "num_embeddings": 8192,
}
"""Defaults of transformers."""
_PREFIX = "model.vqmodel"
_UNREAD = tuple(f"{_PREFIX}.{part}." for part in ("post_quant_conv", "decoder", "loss"))
"""The decoder of image codes, which is not used."""
_IMAGE_CODE = "IMGIMG"
"""Begins the names of tokens of codes: the digits of a code as letters from A follow, then Z."""


@architecture("ChameleonForConditionalGeneration")
def chameleon(c: Config) -> Decoder:
    """Each head has LayerNorms of its own for queries and keys. The tokens of images are not
    sampled."""
    bias, swin = bool(getattr(c, "attention_bias", False)), bool(getattr(c, "swin_norm", False))
    norms = {"mixer_post_norm": "input_layernorm", "ffn_post_norm": "post_attention_layernorm"}
    tower = _tower(c)
    return decoder(
        c,
        gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(layer_norm(1e-5), "each")),
        glu(c, bias=bool(getattr(c, "mlp_bias", False))),
        style="post" if swin else "pre",
        names=tuple((role, f"model.layers.{{layer}}.{name}") for role, name in norms.items()),
        unused=_UNREAD,
        tower=tower,
        suppressed_tokens=tuple(sorted(tower.tokens)),
    )


def _tower(c: Config) -> VqTower:
    v = _VQ | vars(getattr(c, "vq_config", None) or SimpleNamespace())
    tokens, vocabulary = tokens_of(c), vars(c.vocabulary_map)
    if len(tokens) != v["num_embeddings"]:
        raise AttributeError(
            f"vocabulary_map has {len(tokens)} tokens of images for {v['num_embeddings']} codes"
        )
    levels = range(len(v["channel_multiplier"]))
    vanilla, sizes = v["attn_type"] == "vanilla", v["attn_resolutions"] or ()
    return VqTower(
        name=_PREFIX,
        image=v["resolution"],
        base=v["base_channels"],
        channels=tuple(v["base_channels"] * multiplier for multiplier in v["channel_multiplier"]),
        attends=tuple(vanilla and v["resolution"] >> level in sizes for level in levels),
        num_blocks=v["num_res_blocks"],
        middle_attends=vanilla,
        latent=v["latent_channels"],
        code_width=v["embed_dim"],
        tokens=tokens,
        image_token=vocabulary["<image>"],
    )


def tokens_of(c: Config) -> tuple[int, ...]:
    """The token of each code, from the config's `vocabulary_map`."""
    digits = str.maketrans("ABCDEFGHIJ", "0123456789")
    ids = {
        int(name.removeprefix(_IMAGE_CODE)[:-1].translate(digits)): token
        for name, token in vars(c.vocabulary_map).items()
        if name.startswith(_IMAGE_CODE)
    }
    return tuple(ids[code] for code in range(len(ids)))
