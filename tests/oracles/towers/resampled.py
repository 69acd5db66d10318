"""Models whose images become a fixed number of vectors: MiniCPM-V, MiniCPM-o."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.oracles.towers.plain import (
    Weights,
    attend,
    cells,
    siglip_layers,
    siglip_patches,
    siglip_weights,
)
from tests.oracles.towers.sights import Images, Sight, pixels, save, sight, text_model

VISION: dict[str, Any] = {
    "model_type": "siglip",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 35,
    "patch_size": 7,
}
_WIDTH, _QUERIES = 256, 5


def sine_places(rows: int, columns: int, width: int) -> Tensor:
    """For each patch: sines and cosines of its column, then of its row."""
    out = torch.empty(rows, columns, width)
    quarter = width // 4
    for row in range(rows):
        for column in range(columns):
            for wave in range(quarter):
                step = 10_000.0 ** (wave / quarter)
                for half, place in enumerate((column, row)):
                    angle = torch.tensor(place / step)
                    out[row, column, 2 * half * quarter + wave] = angle.sin()
                    out[row, column, (2 * half + 1) * quarter + wave] = angle.cos()
    return out.flatten(0, 1)


def resampled(w: Weights, x: Tensor, rows: int, columns: int) -> Tensor:
    """Queries attend to the states of a slice."""
    states = w.layer_norm("resampler.ln_kv", w.run("resampler.kv_proj", x))
    asked = w.layer_norm("resampler.ln_q", w["resampler.query"])
    weights = w["resampler.attn.in_proj_weight"].chunk(3)
    biases = w["resampler.attn.in_proj_bias"].chunk(3)
    places = sine_places(rows, columns, _WIDTH)
    query, key, value = (
        given @ weight.T + bias
        for given, weight, bias in zip(
            (asked, states + places, states), weights, biases, strict=True
        )
    )
    seen = w.run("resampler.attn.out_proj", attend(query, key, value, _WIDTH // 128))
    return w.layer_norm("resampler.ln_post", seen) @ w["resampler.proj"]


@sight("MiniCPMV", "MiniCPMO")
def minicpm(folder: Path, architecture: str) -> Sight:
    """SigLIP on the whole image and its slices (arXiv:2408.01800), five vectors of each; a patch
    has the position at the same share of a side."""
    sizes = {"hidden_size": _WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2}
    model, config, text = text_model("Qwen2ForCausalLM", num_hidden_layers=2, **sizes)
    w = Weights()
    siglip_weights(w, "vpm", VISION)
    w.random("resampler.query", _QUERIES, _WIDTH)
    w.linear("resampler.kv_proj", 32, _WIDTH, bias=False)
    w.random("resampler.attn.in_proj_weight", 3 * _WIDTH, _WIDTH)
    w.random("resampler.attn.in_proj_bias", 3 * _WIDTH)
    w.linear("resampler.attn.out_proj", _WIDTH, _WIDTH)
    for part in ("q", "kv", "post"):
        w.norm(f"resampler.ln_{part}", _WIDTH)
    w.random("resampler.proj", _WIDTH, _WIDTH)
    if architecture == "MiniCPMO":
        w.random("apm.conv1.weight", 4, 4)
        w.random("tts.emb.weight", 4, 4)
    fields = {
        "version": 2.6,
        "query_num": _QUERIES,
        "vision_config": VISION,
        "slice_config": {"max_slice_nums": 9, "scale_resolution": 28},
        "slice_mode": True,
    }
    save(
        folder, architecture, config | fields, w, text, ("model.", "llm.model."), ("lm_", "llm.lm_")
    )
    (folder / "added_tokens.json").write_text(json.dumps({"<unk>": 300}))
    images, expected = Images(), []
    # 30 x 60 pixels are seen as 3 x 5 patches, and in two slices of 4 x 4; 10 x 10 at once.
    for size, parts in (((30, 60), [(3, 5), (4, 4), (4, 4)]), ((10, 10), [(4, 4)])):
        patches, vectors = [], []
        for seed, (rows, columns) in enumerate(parts):
            image = pixels(seed, 3, 7 * rows, 7 * columns)
            x = siglip_patches(w, "vpm", image, 7)
            shares = [(torch.arange(n) * 5 // n) for n in (rows, columns)]
            table = w["vpm.embeddings.position_embedding.weight"].view(5, 5, -1)
            x = x + table[shares[0]][:, shares[1]].flatten(0, 1)
            x = w.layer_norm("vpm.post_layernorm", siglip_layers(w, "vpm", VISION, x))
            vectors.append(resampled(w, x, rows, columns))
            patches.append(cells(image, 7))
        images.append((torch.cat(patches), (1, *size)))
        expected.append(torch.cat(vectors))
    return Sight(images, expected, model, 300)
