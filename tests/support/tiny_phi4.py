"""A tiny random Phi-4-multimodal of transformers, and what it makes of images.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TILE, PATCH, IMAGE_TOKEN, AUDIO_TOKEN = 28, 7, 319, 318
ARCHITECTURE = "Phi4MultimodalForCausalLM"
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": TILE,
    "crop_size": TILE,
    "patch_size": PATCH,
}
_AUDIO = {
    **{"hidden_size": 16, "intermediate_size": 16, "num_blocks": 1, "num_attention_heads": 2},
    **{"ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 16},
    **{"audio_token_id": AUDIO_TOKEN, "bias_max_distance": 30},
}
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "Phi4MultimodalImageProcessor",
    **{"size": {"height": TILE, "width": TILE}, "patch_size": PATCH, "dynamic_hd": 6},
}
_OWN = (
    (r"img_projection_up\.", "img_projection.0."),
    (r"img_projection_down\.", "img_projection.2."),
    (r"global_img_feature_extensor", "glb_GN"),
    (r"sub_img_feature_extensor", "sub_GN"),
    (r"up_proj_for_speech", "audio_projection.speech.0"),
    (r"down_proj_for_speech", "audio_projection.speech.2"),
    (r"up_proj_for_vision_speech", "audio_projection.vision.0"),
    (r"down_proj_for_vision_speech", "audio_projection.vision.2"),
    (r"(feed_forward_(in|out))\.gate_up_proj", r"\1.net.0.linear"),
    (r"(feed_forward_(in|out))\.down_proj", r"\1.net.2"),
    (r"(encoders\.\d+\.self_attn)\.([qkv])_proj", r"\1.linear_\2"),
    (r"(encoders\.\d+\.self_attn)\.o_proj", r"\1.linear_out"),
    (r"(model\.layers\.\d+\.(self_attn|mlp)\.\w+)\.", r"\1.base_layer."),
)
"""Names of transformers to those of Microsoft's own code."""


def save(folder: Path, image_token: int = IMAGE_TOKEN) -> Any:
    """Save model and processor; returns the transformers model, every weight of it random."""
    import torch
    import transformers

    config = transformers.Phi4MultimodalConfig(
        vision_config=_VISION | {"image_token_id": image_token},
        audio_config=_AUDIO,
        **{"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 320},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
        **{"original_max_position_embeddings": 256, "tie_word_embeddings": False},
        **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
    )
    config.architectures = [ARCHITECTURE]
    torch.manual_seed(0)
    model = transformers.Phi4MultimodalForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            shift = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.normal_(shift, 0.15)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def as_published(folder: Path) -> None:
    """Rename tensors and architecture as Microsoft does, with adapters beside the layers."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = dict[str, Any]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        for pattern, to in _OWN:
            name = re.sub(pattern, to, name)
        tensors[name] = tensor
    assert "model.layers.0.self_attn.qkv_proj.base_layer.weight" in tensors
    tensors["model.layers.0.self_attn.qkv_proj.lora_A.vision.weight"] = torch.zeros(2, 48)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Phi4MMForCausalLM"], "vision_lora": {"r": 2}}
    (folder / "config.json").write_text(json.dumps(config))


def inputs(images: Sequence[tuple[Any, tuple[int, int, int]]]) -> dict[str, Any]:
    """What the model of transformers takes of images as mm-preprocess makes them: tensors
    [1 + tiles, 3, TILE, TILE] and grids."""
    import torch

    side, most = TILE // PATCH, max(len(tiles) for tiles, _ in images)
    pixels = torch.zeros(len(images), most, 3, TILE, TILE)
    mask, sizes = torch.ones(len(images), most, side, side), list[list[int]]()
    for number, (tiles, (_, rows, columns)) in enumerate(images):
        down, across = -(-rows // side), -(-columns // side)
        sizes.append([down * TILE, across * TILE])
        pixels[number, : len(tiles)] = torch.as_tensor(tiles)
        plane = torch.zeros(down * side, across * side)
        plane[:rows, :columns] = 1
        cells = plane.view(down, side, across, side).transpose(1, 2)
        mask[number, 1 : 1 + down * across] = cells.reshape(-1, side, side)
    return {
        "image_pixel_values": pixels,
        "image_sizes": torch.tensor(sizes),
        "image_attention_mask": mask,
    }
