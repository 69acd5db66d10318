"""Tiny random models with a tower for texts and one for images, each with all of its files.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_encoders import CORPUS

VOCAB_SIZE = 320
IMAGE = 30
"""Side of the images that the models take; not a multiple of the patches."""
_TOWER: dict[str, Any] = {
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
TRAITS: dict[str, dict[str, Any]] = {
    "CLIPModel": {
        "text_config": _TOWER
        | {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "max_position_embeddings": 24}
        | {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
        "vision_config": _TOWER | {"hidden_size": 64, "image_size": IMAGE, "patch_size": 4},
        "projection_dim": 40,
        "initializer_factor": 4.0,
    },
    "SiglipModel": {
        "text_config": _TOWER
        | {"vocab_size": VOCAB_SIZE, "hidden_size": 48, "max_position_embeddings": 24}
        | {"projection_size": 64, "eos_token_id": 1, "pad_token_id": 1},
        "vision_config": _TOWER | {"hidden_size": 64, "image_size": IMAGE, "patch_size": 7},
    },
}
_SQUARE = {"height": IMAGE, "width": IMAGE}
PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIPModel": {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": IMAGE},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": _SQUARE,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "do_convert_rgb": True,
    },
    "SiglipModel": {
        "image_processor_type": "SiglipImageProcessor",
        "do_resize": True,
        "size": _SQUARE,
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}


def save(folder: Path, architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """Save a tiny model, its tokenizer and its image processor; returns the transformers model."""
    made = model(architecture, seed=seed, **changes)
    made.save_pretrained(folder)
    save_tokenizer(folder, begins=architecture == "CLIPModel")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[architecture]))
    return made


def model(architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 transformers model; biases and norms are random too, so none is skipped.

    `text_config` and `vision_config` among the changes are laid over those of the model.
    """
    import torch
    import transformers

    built = getattr(transformers, architecture)
    fields = dict(TRAITS[architecture])
    for name, value in changes.items():
        fields[name] = fields[name] | value if isinstance(value, dict) else value
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = built.config_class(**fields, architectures=[architecture])
        made = built(config).eval()
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1 and "logit" not in name:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.data.normal_(centre, 0.2)
    return made


def save_tokenizer(folder: Path, *, begins: bool) -> Path:
    """Lower-case byte-level BPE that frames a text as <s> A </s>, or only ends it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if begins else "$A </s>",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    # Published files of this kind fill texts up themselves, which nobody asks of them here.
    tokenizer.enable_padding(length=24, pad_id=1, pad_token="</s>")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def picture(width: int, height: int, seed: int = 0) -> Any:
    """A Pillow image in RGB, smooth in places and noisy in others."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    noise = generator.integers(0, 256, (height, width, 3))
    ramp = np.linspace(0, 255, width)[None, :, None] * np.linspace(0, 1, height)[:, None, None]
    mixed = np.where(np.arange(width)[None, :, None] % 16 < 8, noise, ramp)
    return Image.fromarray(mixed.astype(np.uint8))


def data_url(image: Any, kind: str = "PNG", **options: Any) -> str:
    """An image as it is sent."""
    import base64
    import io

    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
