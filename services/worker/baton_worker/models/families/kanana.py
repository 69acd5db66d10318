"""Kanana 1.5 V: Qwen2-VL's encoder and a C-Abstractor over images of any size."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.hyperclovax import readout
from baton_worker.models.families.qwen_vision import BASE, stack_of
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import Abstractor, Decoder, Mlp, Norm, Step, VisionTower

_PROJECTOR: dict[str, Any] = {
    "depth": 2,
    "encoder_hidden_size": 1280,
    "feature_layer_index": -1,
    "hidden_size": 1024,
    "merge_size": 2,
    "mlp_depth": 2,
    "pos_emb": True,
    "pos_emb_size": 576,
    "projector_type": "dynamic-c-abs",
}
_RENAMES = ((r"^vision_model\.", "visual."), *RENAMES)


@architecture("KananaVForConditionalGeneration")
def kanana_v(c: Config) -> Decoder:
    """The abstractor takes the states in the order of their windows, as if they lay row by row: so
    the model was trained. The token of an image is the one behind the end of a sequence."""
    text = SimpleNamespace(**vars(c.text_config) | {"model_type": "llama"})
    decoder = text_model(SimpleNamespace(**vars(c) | {"text_config": text}))
    p = part_of(c, "projector", _PROJECTOR)
    defaults = {"embed_dim": p.encoder_hidden_size, "hidden_act": "quick_gelu", "mlp_ratio": 4}
    v = part_of(c, "vision", BASE | defaults)
    norm = Norm(1e-6, "layer", bias=True)
    ffn = Mlp(int(v.embed_dim * v.mlp_ratio), v.hidden_act, bias=True)
    stack = stack_of(v, v.embed_dim, norm, ffn, up="mlp.fc1", down="mlp.fc2")
    layer = p.feature_layer_index
    if not isinstance(layer, int):
        raise AttributeError(f"feature_layer_index {layer} is not one number")
    last = layer if layer >= 0 else v.depth + 1 + layer
    tower = VisionTower(
        stack=replace(stack, layers=stack.layers[:last]),
        projector=_abstractor(p, v.spatial_merge_size, decoder.hidden),
        image_token=image_token(c, text.eos_token_id + 1),
        hidden=decoder.hidden,
    )
    unused = tuple(f"visual.blocks.{number}." for number in range(last, v.depth))
    return with_tower(decoder, tower, _RENAMES, unused)


def _abstractor(p: Any, merge: int, hidden: int) -> tuple[Step, ...]:
    if p.projector_type != "dynamic-c-abs" or p.depth < 1 or p.merge_size != merge:
        raise AttributeError(
            f"projector_type {p.projector_type} with depth {p.depth} and merge_size {p.merge_size} "
            "is unknown"
        )
    positions = math.isqrt(p.pos_emb_size) if p.pos_emb else 0
    return (
        Abstractor(
            "abstractor", p.encoder_hidden_size, p.hidden_size, p.depth, positions, merge=merge
        ),
        *readout("abstractor", p.hidden_size, hidden, p.mlp_depth),
    )
