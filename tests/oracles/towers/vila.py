"""VILA and NVILA, whose parts are in folders of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.checkpoints import write
from tests.oracles.towers.plain import Weights, siglip, siglip_weights
from tests.oracles.towers.sights import Images, Sight, pixels, sight, text_model
from tests.oracles.towers.siglip import VISION

_IMAGE = 302


def windows(x: Tensor, side: int, size: int) -> Tensor:
    """[side * side, C] to windows of `size` x `size`, state after state, zeros at the end of rows
    and of columns."""
    plane = F.pad(x.view(side, side, -1), (0, 0, 0, -side % size, 0, -side % size))
    found = list[Tensor]()
    for top in range(0, side, size):
        for left in range(0, side, size):
            found.append(plane[top : top + size, left : left + size].flatten())
    return torch.stack(found)


@sight("LlavaLlamaModel")
def vila(folder: Path, architecture: str) -> Sight:
    """SigLIP but for its last layer on each tile; windows of 3 x 3 patches, of which the last ones
    are filled up, through two norms and three projections (arXiv:2412.04468)."""
    model, config, text = text_model("Qwen2ForCausalLM")
    vision = VISION | {"num_hidden_layers": 3, "image_size": 20}
    seen, w = Weights(), Weights()
    siglip_weights(seen, "vision_model", vision)
    w.norm("layers.1", 288)
    w.linear("layers.2", 288, 96)
    w.norm("layers.4", 96)
    w.linear("layers.5", 96, 48)
    w.linear("layers.7", 48, 48)
    fields: dict[str, Any] = {
        "model_type": "llava_llama",
        "image_aspect_ratio": "dynamic",
        "max_tiles": 4,
        "mm_vision_select_layer": -2,
        "mm_vision_select_feature": "cls_patch",
        "dynamic_s2": False,
        "image_encoder": '{"_target_": "llava.model.encoders.BasicImageEncoder"}',
        **{f"{part}_cfg": part for part in ("llm", "vision_tower", "mm_projector")},
    }
    (folder / "config.json").write_text(json.dumps(fields | {"architectures": [architecture]}))
    parts: list[tuple[str, str, dict[str, Any], Any]] = [
        ("llm", "Qwen2ForCausalLM", config, text),
        ("vision_tower", "SiglipVisionModel", vision, seen),
        ("mm_projector", "Projector", {"mm_projector_type": "mlp_downsample_3x3_fix"}, w),
    ]
    for name, kind, own, tensors in parts:
        (folder / name).mkdir()
        write(folder / name, kind, own, tensors)
    (folder / "llm" / "added_tokens.json").write_text(json.dumps({"<image>": _IMAGE}))
    images: Images = [(pixels(1, 3, 3, 20, 20), (1, 1, 2)), (pixels(2, 1, 3, 20, 20), (1, 0, 0))]
    expected = []
    for tiles, _ in images:
        rows = []
        for tile in tiles:
            x = windows(siglip(seen, "vision_model", vision | {"num_hidden_layers": 2}, tile), 4, 3)
            x = F.gelu(w.run("layers.2", w.layer_norm("layers.1", x, 1e-5)))
            x = F.gelu(w.run("layers.5", w.layer_norm("layers.4", x, 1e-5)))
            rows.append(w.run("layers.7", x))
        expected.append(torch.cat(rows))
    return Sight(images, expected, model, _IMAGE)
