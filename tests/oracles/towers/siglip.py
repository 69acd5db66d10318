"""Models with SigLIP: Bee, R-4B, Tarsier, Keye-VL, Ovis 2.5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import (
    Weights,
    axial_angles,
    cells,
    in_windows,
    patches_of,
    resized,
    siglip,
    siglip_layers,
    siglip_patches,
    siglip_weights,
)
from tests.oracles.towers.sights import (
    IMAGE_TOKEN,
    Images,
    Sight,
    pixels,
    save,
    sight,
    text_model,
)

VISION: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 5,
}
_OFFERED = [[30, 60], [60, 30], [60, 60], [90, 30], [30, 90]]


def projected(w: Weights, x: Tensor) -> Tensor:
    """LLaVA's two projections."""
    name = "multi_modal_projector.linear_"
    return w.run(f"{name}2", F.gelu(w.run(f"{name}1", x)))


@sight("BeeForConditionalGeneration", "RForConditionalGeneration")
def normed_projector(folder: Path, architecture: str) -> Sight:
    """LLaVA-OneVision's tiles (arXiv:2408.03326) whose states are normed before the projections."""
    model, config, text = text_model("Qwen3ForCausalLM")
    w, wide = Weights(), 4 if architecture.startswith("Bee") else 1
    siglip_weights(w, "vision_tower.vision_model", VISION)
    w.norm("multi_modal_projector.pre_norm", 32)
    w.linear("multi_modal_projector.linear_1", 32, wide * 48)
    w.linear("multi_modal_projector.linear_2", wide * 48, 48)
    newline = w.random("image_newline", 48)
    fields = {
        "text_config": config | {"model_type": "qwen3"},
        "vision_config": VISION,
        "image_token_index": IMAGE_TOKEN,
        "image_grid_pinpoints": _OFFERED,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": "anyres_max_9",
    }
    save(
        folder,
        architecture,
        fields,
        w,
        text,
        ("model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    )

    def seen(tile: Tensor) -> Tensor:
        states = siglip(w, "vision_tower.vision_model", VISION, tile)
        return projected(w, w.layer_norm("multi_modal_projector.pre_norm", states))

    # The frame of 30 x 60 pixels holds 30 x 45 in its middle: 9 of 12 columns of patches, and one
    # of the 3 others is cut off at either side. An image of 60 x 60 fills its frame.
    images: Images = [
        (pixels(1, 3, 3, 30, 30), (1, 30, 45)),
        (pixels(2, 5, 3, 30, 30), (1, 60, 60)),
    ]
    expected = []
    shown = ((1, 2, slice(1, 11)), (2, 2, slice(0, 12)))
    for (tiles, _), (tall, broad, kept) in zip(images, shown, strict=True):
        whole, *parts = [seen(tile) for tile in tiles]
        lines = [part.view(6, 6, -1) for part in parts]
        bands = [torch.cat(lines[row * broad : (row + 1) * broad], 1) for row in range(tall)]
        plane = torch.cat((torch.cat(bands)[:, kept], newline.expand(tall * 6, 1, -1)), dim=1)
        expected.append(torch.cat((whole, plane.flatten(0, 1))))
    return Sight(images, expected, model)


@sight("TarsierForConditionalGeneration")
def tarsier(folder: Path, architecture: str) -> Sight:
    """LLaVA's tower (arXiv:2407.00634); the vectors between rows are those of tokens."""
    model, config, text = text_model("LlamaForCausalLM")
    w = Weights()
    siglip_weights(w, "vision_tower.vision_model", VISION | {"num_hidden_layers": 3})
    w.linear("multi_modal_projector.linear_1", 32, 48)
    w.linear("multi_modal_projector.linear_2", 48, 48)
    fields = {
        "text_config": config | {"model_type": "llama"},
        "vision_config": VISION | {"num_hidden_layers": 3},
        "image_token_index": IMAGE_TOKEN,
        "image_newline_idx": 317,
        "image_new_idx": 318,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "full",
        "projector_hidden_act": "gelu",
    }
    own = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    save(folder, architecture, fields, w, text, *own)
    images: Images = [(pixels(seed, 3, 30, 30), (1, 1, 1)) for seed in (1, 2)]
    states = [siglip(w, "vision_tower.vision_model", VISION, image) for image, _ in images]
    return Sight(images, [projected(w, x) for x in states], model)


@sight("KeyeForConditionalGeneration", "KeyeVL1_5ForConditionalGeneration")
def keye(folder: Path, architecture: str) -> Sight:
    """Positions are resized as an image and beside them rows and columns turn queries and keys;
    2 x 2 patches are merged (arXiv:2507.01949), in 1.5 before they are normed (2509.01563)."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}
    model, config, text = text_model("Qwen3ForCausalLM", rope_parameters=rope)
    w, prefix, merged = Weights(), "visual.vision_model", architecture.startswith("KeyeVL1_5")
    siglip_weights(w, prefix, VISION)
    w.random(f"{prefix}.embeddings.packing_position_embedding.weight", 64, 32)
    w.norm("mlp_AR.pre_norm", 128 if merged else 32)
    w.linear("mlp_AR.linear_1", 128, 128)
    w.linear("mlp_AR.linear_2", 128, 48)
    del config["rope_parameters"]
    config |= {"rope_scaling": {"type": "default", "mrope_section": [4, 2, 2]}}
    config |= {"rope_theta": 10_000.0, "vision_config": VISION | {"spatial_merge_size": 2}}
    save(folder, architecture, config | {"image_token_id": IMAGE_TOKEN}, w, text)
    images, expected = Images(), []
    for seed, (rows, columns) in enumerate(((6, 4), (2, 8), (6, 6))):
        image = pixels(seed, 3, rows * 5, columns * 5)
        x = siglip_patches(w, prefix, image, 5)
        table = w[f"{prefix}.embeddings.position_embedding.weight"]
        x = x + resized(table, rows, columns, mode="bilinear", align_corners=False)
        x = siglip_layers(w, prefix, VISION, x, axial_angles(rows, columns, 8))
        x = w.layer_norm(f"{prefix}.post_layernorm", x)
        if not merged:
            x = w.layer_norm("mlp_AR.pre_norm", x, 1e-5)
        x = in_windows(x, rows, columns).flatten(1)
        if merged:
            x = w.layer_norm("mlp_AR.pre_norm", x, 1e-5)
        expected.append(w.run("mlp_AR.linear_2", F.gelu(w.run("mlp_AR.linear_1", x))))
        images.append((patches_of(image, 5), (1, rows, columns)))
    return Sight(images, expected, model)


@sight("Ovis2_5")
def ovis2_5(folder: Path, architecture: str) -> Sight:
    """Positions are resized as an image and beside them rows and columns turn queries and keys;
    a vector is the mean of a vocabulary under the softmax of 2 x 2 patches, and two vectors of the
    vocabulary are the ends of an image (arXiv:2508.11737)."""
    model, config, text = text_model("Qwen3ForCausalLM")
    w, prefix, size = Weights(), "visual_tokenizer.vit.vision_model", 20
    siglip_weights(w, prefix, VISION)
    w.linear("visual_tokenizer.head.0", 128, size - 4, bias=False)
    w.norm("visual_tokenizer.head.1", size - 4)
    table = w.random("vte.weight", size, 48)
    fields = {
        "llm_config": config | {"model_type": "qwen3"},
        "vit_config": VISION | {"model_type": "siglip2_navit", "hidden_stride": 2},
        "visual_vocab_size": size,
        "hidden_size": 48,
    }
    save(folder, architecture, fields, w, text, ("model.", "llm.model."), ("lm_h", "llm.lm_h"))
    added = {"added_tokens_decoder": {"302": {"content": "<|image_pad|>"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(added))
    images, expected = Images(), []
    for seed, (rows, columns) in enumerate(((6, 4), (2, 8), (6, 6))):
        image = pixels(seed, 3, rows * 5, columns * 5)
        x = siglip_patches(w, prefix, image, 5)
        places = w[f"{prefix}.embeddings.position_embedding.weight"]
        x = x + resized(places, rows, columns, mode="bicubic", align_corners=False)
        x = siglip_layers(w, prefix, VISION, x, axial_angles(rows, columns, 8))
        x = w.layer_norm(f"{prefix}.post_layernorm", x)
        x = w.run("visual_tokenizer.head.0", in_windows(x, rows, columns).flatten(1))
        shares = w.layer_norm("visual_tokenizer.head.1", x, 1e-5).softmax(-1)
        start, end = table[size - 4 : size - 3], table[size - 3 : size - 2]
        expected.append(torch.cat((start, shares @ table[: size - 4], end)))
        images.append((patches_of(image, 5), (1, rows, columns)))
    return Sight(images, expected, model, 302)


class SectionedRotary(torch.nn.Module):
    """The angles of Qwen2-VL's rope for positions on three axes, in the place of those of a model
    of transformers."""

    def __init__(self, axes: Sequence[int], base: float, *, apart: bool) -> None:
        """`axes` of pairs of channels; with `apart`, rows and columns count from 0 in an image."""
        super().__init__()
        self.axes, self.base, self.apart = torch.tensor(axes), base, apart
        self.places = torch.empty((3, 0), dtype=torch.int64)

    def place(self, prompt: list[int], image_token: int, grids: list[tuple[int, ...]]) -> None:
        """Positions of a prompt with images of rows x columns of tokens."""
        places, time, shapes = list[tuple[int, int, int]](), 0, iter(grids)
        while len(places) < len(prompt):
            if prompt[len(places)] != image_token:
                places.append((time, time, time))
            else:
                rows, columns = next(shapes)
                first = 0 if self.apart else time
                cells = [(r, c) for r in range(rows) for c in range(columns)]
                places += [(time, first + r, first + c) for r, c in cells]
                time += 0 if self.apart else max(rows, columns) - 1
            time += 1
        self.places = torch.tensor(places).T

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [1, n, 2 * pairs]; text goes on behind the prompt."""
        more, half = position_ids.shape[-1] - self.places.shape[1], len(self.axes)
        first = int(self.places[0, -1]) + 1 if self.places.shape[1] else 0
        places = torch.cat((self.places, (torch.arange(more) + first).expand(3, -1)), 1)
        angles = places[self.axes].T * self.base ** -(torch.arange(half) / half)
        both = torch.cat((angles, angles), 1)[None]
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


@sight("IsaacForConditionalGeneration")
def isaac(folder: Path, architecture: str) -> Sight:
    """SigLIP 2 with a matrix over patches whose channels are last, 2 x 2 patches merged, and a
    projection without biases."""
    sections = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
    model, config, text = text_model("Qwen3ForCausalLM", head_dim=8)
    w, root = Weights(), "model.vision_embedding"
    siglip_weights(w, f"{root}.0", VISION)
    name = f"{root}.0.embeddings.patch_embedding.weight"
    w[name] = w[name].permute(0, 2, 3, 1).flatten(1).contiguous()
    w.linear(f"{root}.1", 128, 512, bias=False)
    w.linear(f"{root}.3", 512, 48, bias=False)
    own = VISION | {"num_patches": 36, "pixel_shuffle_scale_factor": 2}
    more = {"vision_config": own, "image_token_id": IMAGE_TOKEN, "rope_parameters": sections}
    save(folder, architecture, config | more, w, text)
    model.model.rotary_emb = SectionedRotary((0, 0, 1, 2), 10_000.0, apart=True)
    images, expected = Images(), []
    for seed, (rows, columns) in enumerate(((6, 4), (2, 8))):
        image = pixels(seed, 3, rows * 5, columns * 5)
        patches = cells(image, 5).unflatten(1, (3, 25)).transpose(1, 2).flatten(1)
        x = F.linear(patches, w[name], w[f"{root}.0.embeddings.patch_embedding.bias"])
        table = w[f"{root}.0.embeddings.position_embedding.weight"]
        how = {"mode": "bilinear", "align_corners": False, "antialias": True}
        x = siglip_layers(w, f"{root}.0", VISION, x + resized(table, rows, columns, **how))
        x = in_windows(w.layer_norm(f"{root}.0.post_layernorm", x), rows, columns).flatten(1)
        expected.append(w.run(f"{root}.3", F.silu(w.run(f"{root}.1", x))))
        images.append((patches_of(image, 5), (1, rows, columns)))
    return Sight(images, expected, model)
