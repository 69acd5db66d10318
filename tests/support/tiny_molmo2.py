"""A tiny random Molmo 2 of transformers, and what it makes of images.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CROP, PATCH, VOCABULARY, EXTRA = 110, 10, 320, 16
"""Crops of 11 x 11 patches, of which neighbours share 8."""
IMAGE_TOKEN = 322
SETTINGS = {
    "image_processor_type": "Molmo2ImageProcessor",
    **{"size": {"height": CROP, "width": CROP}, "patch_size": PATCH, "max_crops": 4},
}


def save(folder: Path, image_token: int = IMAGE_TOKEN, vocabulary: int = VOCABULARY) -> Any:
    """Save model and processor; returns the transformers model, every weight of it random."""
    import torch
    import transformers

    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Molmo2Config(
        vision_config=sizes
        | {"num_key_value_heads": 4, "hidden_size": 32, "intermediate_size": 40}
        | {"num_hidden_layers": 3, "image_size": [CROP, CROP], "patch_size": PATCH},
        adapter_config=sizes
        | {"hidden_size": 32, "intermediate_size": 24, "text_hidden_size": 48}
        | {"vision_feature_layer": [2, 0]},
        text_config=sizes
        | {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2}
        | {"vocab_size": vocabulary, "additional_vocab_size": EXTRA}
        | {"max_position_embeddings": 512}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
        image_patch_id=image_token,
    )
    config.architectures = ["Molmo2ForConditionalGeneration"]
    torch.manual_seed(0)
    model = transformers.Molmo2ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            shift = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.normal_(shift, 0.15)
    model.save_pretrained(folder)
    _as_published(folder, vocabulary)
    (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    return model


def _as_published(folder: Path, vocabulary: int) -> None:
    """transformers saves two halves of the embedding under the names of its two parts."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = [f"model.transformer.wte.{part}" for part in ("embedding", "new_embedding")]
    whole = torch.cat([tensors[name] for name in names])
    for name, part in zip(names, (whole[:vocabulary], whole[vocabulary:]), strict=True):
        tensors[name] = part.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def windows(plane: list[list[int]]) -> list[list[int]]:
    """The patches of each window of 2 x 2, -1 for none; an odd side has one row of none, at its
    end."""
    found = []
    for top in range(0, len(plane), 2):
        for left in range(0, len(plane[0]), 2):
            places = [(top + down, left + across) for down in (0, 1) for across in (0, 1)]
            found.append(
                [
                    plane[row][column] if row < len(plane) and column < len(plane[0]) else -1
                    for row, column in places
                ]
            )
    return found


def shown(rows: int, columns: int, first: int) -> list[list[int]]:
    """Numbers of the patches, from `first` on, that show each place of what crops show together:
    those of the crop before up to its last four, and of the first four of no later crop."""
    side = CROP // PATCH

    def source(at: int, count: int) -> tuple[int, int]:
        crop = min(max(0, (at - 4) // 3), count - 1)
        return crop, at - 3 * crop

    lines = []
    for at in range(3 * rows + 8):
        (row, inner), line = source(at, rows), []
        for other in range(3 * columns + 8):
            column, across = source(other, columns)
            line.append(first + ((row * columns + column) * side + inner) * side + across)
        lines.append(line)
    return lines


def inputs(images: Sequence[tuple[Any, tuple[int, int, int]]]) -> dict[str, Any]:
    """What the model of transformers takes of images as mm-preprocess makes them: tensors
    [1 + crops, 3, CROP, CROP] and grids."""
    import torch

    side, offset = CROP // PATCH, 0
    patches, pooling, grids = [], list[list[int]](), []
    for crops, (_, rows, columns) in images:
        tiles = torch.as_tensor(crops).unflatten(2, (side, PATCH)).unflatten(4, (side, PATCH))
        patches.append(tiles.permute(0, 2, 4, 3, 5, 1).reshape(len(tiles), side**2, -1))
        whole = [[offset + row * side + column for column in range(side)] for row in range(side)]
        pooling += windows(whole) + windows(shown(rows, columns, offset + side**2))
        tall, wide = 3 * rows + 8, 3 * columns + 8
        grids.append([(side + 1) // 2] * 2 + [(tall + 1) // 2, (wide + 1) // 2])
        offset += len(tiles) * side**2
    return {
        "pixel_values": torch.cat(patches),
        "image_token_pooling": torch.tensor(pooling),
        "image_grids": torch.tensor(grids),
    }
