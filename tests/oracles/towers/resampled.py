"""Models whose images become a fixed number of vectors: MiniCPM-V, MiniCPM-o, Qwen-VL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.checkpoints import renamed, write
from tests.oracles.towers.plain import (
    Weights,
    attend,
    cells,
    resized,
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


_QWEN = (
    ("model.layers.", "transformer.h."),
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
    ("self_attn.o_proj", "attn.c_proj"),
    ("mlp.gate_proj", "mlp.w2"),
    ("mlp.up_proj", "mlp.w1"),
    ("mlp.down_proj", "mlp.c_proj"),
)
"""Names of Qwen 2 to those of the first Qwen, which is the same model with as many keys."""
_VIT = {
    "heads": 4,
    "image_size": 24,
    "image_start_id": 317,
    "layers": 2,
    "mlp_ratio": 1.3,
    "n_queries": 4,
    "output_dim": _WIDTH,
    "patch_size": 6,
    "width": 32,
}


def vit_weights(w: Weights, root: str) -> None:
    """OpenCLIP's tensors, and those of the resampler behind it."""
    inner = int(32 * 1.3)
    w.random(f"{root}.conv1.weight", 32, 3, 6, 6)
    w.random(f"{root}.positional_embedding", 4, 32)
    for part, width in (("ln_pre", 32), ("ln_post", _WIDTH)):
        w.norm(f"{root}.{part}", width)
    for layer in range(2):
        name = f"{root}.transformer.resblocks.{layer}"
        w.linear(f"{name}.attn.in_proj", 32, 96)
        w.linear(f"{name}.attn.out_proj", 32, 32)
        w.linear(f"{name}.mlp.c_fc", 32, inner)
        w.linear(f"{name}.mlp.c_proj", inner, 32)
        w.norm(f"{name}.ln_1", 32)
        w.norm(f"{name}.ln_2", 32)
    pool = f"{root}.attn_pool"
    w.random(f"{pool}.query", 4, _WIDTH)
    w.random(f"{pool}.pos_embed", 4, _WIDTH)
    w.linear(f"{pool}.kv_proj", 32, _WIDTH, bias=False)
    w.random(f"{pool}.attn.in_proj_weight", 3 * _WIDTH, _WIDTH)
    w.random(f"{pool}.attn.in_proj_bias", 3 * _WIDTH)
    w.linear(f"{pool}.attn.out_proj", _WIDTH, _WIDTH)
    w.norm(f"{pool}.ln_q", _WIDTH)
    w.norm(f"{pool}.ln_kv", _WIDTH)
    w.random(f"{root}.proj", _WIDTH, _WIDTH)


def vit(w: Weights, root: str, image: Tensor) -> Tensor:
    """The states of 4 x 4 patches; the in-projection has query, key and value of one head after
    the other."""
    bicubic = {"mode": "bicubic", "align_corners": False}
    x = cells(image, 6) @ w[f"{root}.conv1.weight"].flatten(1).T
    x = x + resized(w[f"{root}.positional_embedding"], 4, 4, **bicubic)
    x = w.layer_norm(f"{root}.ln_pre", x)
    for layer in range(2):
        name = f"{root}.transformer.resblocks.{layer}"
        mixed = w.run(f"{name}.attn.in_proj", w.layer_norm(f"{name}.ln_1", x)).view(16, 4, 3, 8)
        query, key, value = (mixed[:, :, part].flatten(1) for part in range(3))
        x = x + w.run(f"{name}.attn.out_proj", attend(query, key, value, 4))
        inner = F.gelu(w.run(f"{name}.mlp.c_fc", w.layer_norm(f"{name}.ln_2", x)))
        x = x + w.run(f"{name}.mlp.c_proj", inner)
    return x


@sight("QwenVLForConditionalGeneration")
def qwen_vl(folder: Path, architecture: str) -> Sight:
    """A ViT and queries with stored positions, which keys have resized (arXiv:2308.12966)."""
    sizes = {"hidden_size": _WIDTH, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes |= {"use_sliding_window": False}
    model, config, text = text_model("Qwen2ForCausalLM", num_hidden_layers=2, **sizes)
    stored = renamed(text, *_QWEN)
    for layer in range(2):
        stem = f"transformer.h.{layer}"
        for kind in ("weight", "bias"):
            parts = [stored.pop(f"{stem}.self_attn.{part}_proj.{kind}") for part in "qkv"]
            stored[f"{stem}.attn.c_attn.{kind}"] = torch.cat(parts)
    w, root = Weights(), "transformer.visual"
    vit_weights(w, root)
    own = {
        "model_type": "qwen",
        "visual": _VIT,
        "kv_channels": _WIDTH // 4,
        "layer_norm_epsilon": config["rms_norm_eps"],
        "intermediate_size": 2 * config["intermediate_size"],
        "seq_length": 200,
        "no_bias": True,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "tie_word_embeddings": False,
    }
    for name in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"):
        own[name] = config[name]
    own["max_position_embeddings"] = config["max_position_embeddings"]
    write(folder, architecture, own, {**w, **stored})
    pool, bicubic = f"{root}.attn_pool", {"mode": "bicubic", "align_corners": False}
    places, images, expected = w[f"{pool}.pos_embed"], Images(), []
    weights = w[f"{pool}.attn.in_proj_weight"].chunk(3)
    biases = w[f"{pool}.attn.in_proj_bias"].chunk(3)
    for seed in range(2):
        image = pixels(seed, 3, 24, 24)
        states = w.layer_norm(f"{pool}.ln_kv", w.run(f"{pool}.kv_proj", vit(w, root, image)))
        asked = w.layer_norm(f"{pool}.ln_q", w[f"{pool}.query"]) + places
        given = (asked, states + resized(places, 4, 4, **bicubic), states)
        query, key, value = (
            part @ weight.T + bias
            for part, weight, bias in zip(given, weights, biases, strict=True)
        )
        seen = w.run(f"{pool}.attn.out_proj", attend(query, key, value, _WIDTH // 128))
        expected.append(w.layer_norm(f"{root}.ln_post", seen) @ w[f"{root}.proj"])
        images.append((image, (1, 1, 1)))
    return Sight(images, expected, model)
