"""HyperCLOVA X SEED Vision (arXiv:2404.01954): SigLIP or CLIP on tiles, and a C-Abstractor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llava import tower, unread
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import (
    Abstractor,
    Decoder,
    Dense,
    Newlines,
    Norm,
    Normed,
    Patches,
    Step,
)

_RENAMES = ((r"^vision_model\.", "vision_tower."), *RENAMES)
_PROJECTOR = "mm_projector"
_DEPTH = 3
"""RegNet blocks on either side of the smaller plane."""


@architecture("HCXVisionForCausalLM")
def hyperclovax_vision(c: Config) -> Decoder:
    """The states of a layer near the last, and tiles as rows with a vector after each."""
    if not (getattr(c, "anyres", False) and getattr(c, "unpad", False)):
        raise AttributeError("anyres and unpad are not both true: images without tiles are unknown")
    decoder, layer = _text(c), getattr(c, "use_nth_layer", -2)
    token = image_token(c, getattr(c, "img_start_id", 100_009))
    vision = tower(c, decoder.hidden, kind="siglip_vision_model", layer=layer, token=token)
    patches = vision.stack.patches
    steps, side = _projector(c, patches, vision.stack.hidden, decoder.hidden)
    offered = tuple(_offered(c, patches.image))
    rows = Newlines("image_newline", patches.image, side, offered, rounded=False)
    vision = replace(vision, projector=steps, arrangement=rows)
    unused = tuple(name for name in unread(c, layer) if name != rows.name)
    return with_tower(decoder, vision, _RENAMES, unused)


def _text(c: Config) -> Decoder:
    """The vocabulary may include padding that the config counts separately."""
    part = vars(c.text_config)
    size = {"vocab_size": part.get("padded_vocab_size") or part["vocab_size"]}
    return text_model(SimpleNamespace(**vars(c) | {"text_config": SimpleNamespace(**part | size)}))


def _projector(
    c: Config, patches: Patches, inputs: int, hidden: int
) -> tuple[tuple[Step, ...], int]:
    """The steps, and the vectors along a side of a tile behind them."""
    kind, side = c.mm_projector_type, patches.image // patches.size
    if kind == "linear":
        return (Dense(_PROJECTOR, inputs, hidden),), side
    if kind in ("mlp", "inverted_mlp"):
        inner = inputs if kind == "mlp" else 2 * inputs
        up = Dense(f"{_PROJECTOR}.fc1", inputs, inner, activation="gelu")
        return (up, Dense(f"{_PROJECTOR}.fc2", inner, hidden)), side
    if kind != "cabstractor":
        raise AttributeError(f"mm_projector_type {kind} is unknown")
    pooled = math.isqrt(_queries(c))
    positions = side if getattr(c, "proj_pos_emb", True) else 0
    norm = Normed(Norm(1e-6, "layer", bias=True), inputs, f"{_PROJECTOR}.prenorm")
    return (
        *([norm] if getattr(c, "proj_prenorm", False) else []),
        Abstractor(_PROJECTOR, inputs, inputs, _DEPTH, positions, pooled),
        *readout(_PROJECTOR, inputs, hidden, 2),
    ), pooled


def _queries(c: Config) -> int:
    """Vectors of a tile, under the new or the old name."""
    old = getattr(c, "num_queries_vis_abstractor", 0)
    return int(getattr(c, "num_queries_vis_abstractor_image", old))


def readout(prefix: str, inputs: int, hidden: int, depth: int) -> tuple[Dense, ...]:
    """The projections behind an abstractor."""
    return tuple(
        Dense(
            f"{prefix}.readout.{2 * step}",
            hidden if step else inputs,
            hidden,
            activation="silu" if step < depth - 1 else "identity",
        )
        for step in range(depth)
    )


def _offered(c: Config, tile: int) -> Iterator[tuple[int, int]]:
    """Heights and widths of the grids of tiles, listed or up to so many tiles."""
    listed = getattr(c, "possible_resolutions", None)
    if listed:
        yield from ((tall, wide) for tall, wide in listed)
        return
    most, single = c.max_num_grids, getattr(c, "use_1x1_grid", False)
    for rows in range(1, most + 1):
        for columns in range(1, most // rows + 1):
            if rows * columns > 1 or single:
                yield rows * tile, columns * tile
