"""Phi-4-multimodal (arXiv:2503.01743): SigLIP on the tiles of an image and on the whole of it, and
a conformer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.logs import logger
from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.conformers import phi4_audio
from baton_worker.models.families.phi import phi3
from baton_worker.models.families.vision_common import with_tower
from baton_worker.spec import Decoder, Dense, HdTiles, Merge, Tower, TowerPair, Vision, VisionTower

log = logger(__name__)
_IMAGE = "model.embed_tokens_extend.image_embed"
_SOUND = "model.embed_tokens_extend.audio_embed"
_STACK = f"{_IMAGE}.img_processor"
_ADAPTER = "adapter_weights"
_RENAMES = (
    (rf"^{_IMAGE}\.img_projection\.0\.", f"{_IMAGE}.img_projection_up."),
    (rf"^{_IMAGE}\.img_projection\.2\.", f"{_IMAGE}.img_projection_down."),
    (rf"^{_IMAGE}\.glb_GN$", f"{_IMAGE}.global_img_feature_extensor"),
    (rf"^{_IMAGE}\.sub_GN$", f"{_IMAGE}.sub_img_feature_extensor"),
    (r"^(model\.layers\..*)\.base_layer\.", r"\1."),
    (rf"^{_SOUND}\.audio_projection\.speech\.0\.", f"{_SOUND}.up_proj_for_speech."),
    (rf"^{_SOUND}\.audio_projection\.speech\.2\.", f"{_SOUND}.down_proj_for_speech."),
    (rf"^({_SOUND}\..*\.feed_forward_(in|out))\.net\.0\.linear\.", r"\1.gate_up_proj."),
    (rf"^({_SOUND}\..*\.feed_forward_(in|out))\.net\.2\.", r"\1.down_proj."),
    (rf"^({_SOUND}\..*\.self_attn)\.linear_([qkv])\.", r"\1.\2_proj."),
    (rf"^({_SOUND}\..*\.self_attn)\.linear_out\.", r"\1.o_proj."),
    (r"^model\.layers\.(.*\.lora_[AB]\.(vision|speech)\.)", rf"{_ADAPTER}.\1"),
)
"""Names of Microsoft's own code."""
_UNUSED_AUDIO = ("up_proj_for_vision_speech.", "down_proj_for_vision_speech.", "audio_projection.")
"""Projections of speech beside images."""
_VISION: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "feature_layer": -2,
    "image_token_id": 200_010,
}


@architecture("Phi4MMForCausalLM", "Phi4MultimodalForCausalLM")
def phi4_multimodal(c: Config) -> Decoder:
    """The language model is Phi-3's. Its adapters for images and for speech, whose weights
    Microsoft's checkpoint also holds beside those of the layers, are served as any other."""
    if getattr(c, "vision_lora", None) is not None:
        log.warning(
            "The checkpoint's adapter for images is not applied by itself: serve the folder "
            "vision-lora beside it (--lora-modules) and name it in requests with images."
        )
    v = SimpleNamespace(**_VISION | vars(getattr(c, "vision_config", None) or SimpleNamespace()))
    decoder, stack = phi3(c), _stack(v)
    has_audio = any(getattr(c, part, None) for part in ("audio_config", "audio_processor"))
    unused = (
        *(f"{_SOUND}.{part}" for part in (_UNUSED_AUDIO if has_audio else ("",))),
        *(f"{_ADAPTER}.", f"{_STACK}.head."),
        *(f"{_STACK}.post_layernorm.", f"{_STACK}.embeddings.position_ids"),
        *(f"{_STACK}.encoder.layers.{n}." for n in range(len(stack.layers), v.num_hidden_layers)),
    )
    vision = _tower(v, stack, decoder.hidden)
    tower: Tower = vision
    if has_audio:
        tower = TowerPair(vision, phi4_audio(c, decoder.hidden, _SOUND))
    return with_tower(decoder, tower, _RENAMES, unused)


def _tower(v: Any, stack: Vision, hidden: int) -> VisionTower:
    if v.image_size // v.patch_size % 2:
        raise AttributeError("image_size is no even number of patches of patch_size")
    return VisionTower(
        stack=stack,
        projector=(Merge(2, "mean"),),
        image_token=v.image_token_id,
        hidden=hidden,
        arrangement=HdTiles(
            f"{_IMAGE}.sub_img_feature_extensor",
            f"{_IMAGE}.global_img_feature_extensor",
            v.image_size // v.patch_size,
        ),
        finish=(
            Dense(f"{_IMAGE}.img_projection_up", stack.hidden, hidden, activation="gelu"),
            Dense(f"{_IMAGE}.img_projection_down", hidden, hidden),
        ),
    )


def _stack(v: Any) -> Vision:
    """The states behind `feature_layer`, not normed; state 0 is the input of the layers."""

    stack = siglip_vision(SimpleNamespace(vision_config=v), _STACK)
    layer = v.feature_layer if v.feature_layer >= 0 else len(stack.layers) + 1 + v.feature_layer
    patches = replace(stack.patches, positions="buckets")
    return replace(stack, layers=stack.layers[:layer], final_norm=False, patches=patches)
