"""Models whose encoders take images of any size as patches: dots.ocr."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F

from tests.oracles.towers.plain import (
    Weights,
    attend,
    axial_angles,
    cells,
    in_windows,
    patches_of,
    turned,
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


@sight("DotsOCRForCausalLM")
def dots_ocr(folder: Path, architecture: str) -> Sight:
    """RMS norms, gated layers, rotated queries and keys, 2 x 2 patches merged
    (arXiv:2512.02498)."""
    model, config, text = text_model("Qwen2ForCausalLM")
    w, root = Weights(), "vision_tower"
    w.random(f"{root}.patch_embed.patchifier.proj.weight", 32, 3, 4, 4)
    w.random(f"{root}.patch_embed.patchifier.proj.bias", 32)
    w.norm(f"{root}.patch_embed.patchifier.norm", 32, bias=False)
    for layer in range(2):
        name = f"{root}.blocks.{layer}"
        w.linear(f"{name}.attn.qkv", 32, 96, bias=False)
        w.linear(f"{name}.attn.proj", 32, 32, bias=False)
        for part, shape in (("fc1", (32, 40)), ("fc3", (32, 40)), ("fc2", (40, 32))):
            w.linear(f"{name}.mlp.{part}", *shape, bias=False)
        w.norm(f"{name}.norm1", 32, bias=False)
        w.norm(f"{name}.norm2", 32, bias=False)
    w.norm(f"{root}.post_trunk_norm", 32, bias=False)
    w.norm(f"{root}.merger.ln_q", 32)
    w.linear(f"{root}.merger.mlp.0", 128, 128)
    w.linear(f"{root}.merger.mlp.2", 128, 48)
    vision = {
        "embed_dim": 32,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 4,
    }
    more = {"vision_config": vision, "image_token_id": IMAGE_TOKEN}
    save(folder, architecture, config | more, w, text)
    images, expected = Images(), []
    for seed, (rows, columns) in enumerate(((6, 4), (2, 8))):
        image = pixels(seed, 3, rows * 4, columns * 4)
        name = f"{root}.patch_embed.patchifier"
        x = F.linear(cells(image, 4), w[f"{name}.proj.weight"].flatten(1), w[f"{name}.proj.bias"])
        x, angles = w.rms_norm(f"{name}.norm", x, 1e-5), axial_angles(rows, columns, 8)
        for layer in range(2):
            name = f"{root}.blocks.{layer}"
            normed = w.rms_norm(f"{name}.norm1", x, 1e-5)
            query, key, value = w.run(f"{name}.attn.qkv", normed).chunk(3, dim=-1)
            query, key = turned(query, angles, 4), turned(key, angles, 4)
            x = x + w.run(f"{name}.attn.proj", attend(query, key, value, 4))
            normed = w.rms_norm(f"{name}.norm2", x, 1e-5)
            inner = F.silu(w.run(f"{name}.mlp.fc1", normed)) * w.run(f"{name}.mlp.fc3", normed)
            x = x + w.run(f"{name}.mlp.fc2", inner)
        x = w.rms_norm(f"{root}.post_trunk_norm", x, 1e-5)
        x = in_windows(w.layer_norm(f"{root}.merger.ln_q", x), rows, columns).flatten(1)
        x = F.gelu(w.run(f"{root}.merger.mlp.0", x))
        expected.append(w.run(f"{root}.merger.mlp.2", x))
        images.append((patches_of(image, 4), (1, rows, columns)))
    return Sight(images, expected, model)
