"""A tiny random Llama 3.2 Vision with all of its files, and what transformers makes of a prompt.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import tiny_llava, tiny_models
from tests.support.tiny_towers import TOWERS, tiny_tower

IMAGE_TOKEN, SIDE, TILES = "<|image|>", 16, 4
CROSSING = [1, 3]
TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace(tiny_llava.IMAGE_TOKEN, IMAGE_TOKEN)
PROCESSOR = {
    "image_processor_type": "MllamaImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "max_image_tiles": TILES,
}


def save(folder: Path) -> Any:
    """Save model, tokenizer and processor; returns the transformers model. The image token is
    behind the vocabulary."""
    from tokenizers import Tokenizer

    tiny_models.save_tokenizer(folder)
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([IMAGE_TOKEN])
    tokenizer.save(str(file))
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    token = tokenizer.token_to_id(IMAGE_TOKEN)
    text = TOWERS["mllama"][1]["text_config"] | {"vocab_size": token}
    model = tiny_tower("mllama", folder, text_config=text, image_token_index=token)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def inputs(prompt: Sequence[int], images: Sequence[Any], token: int) -> dict[str, Any]:
    """What its processor of transformers makes of a prompt with its images."""
    import torch
    import transformers
    from transformers.models.mllama import processing_mllama as own

    settings = {k: v for k, v in PROCESSOR.items() if k != "image_processor_type"}
    seen = transformers.MllamaImageProcessorPil(**settings)([list(images)], return_tensors="pt")
    mask = own.convert_sparse_cross_attention_mask_to_dense(
        [own.get_cross_attention_token_mask(list(prompt), token)],
        num_tiles=seen.pop("num_tiles"),
        max_num_tiles=TILES,
        length=len(prompt),
    )
    return {**seen, "cross_attention_mask": torch.from_numpy(mask)}


def continued(
    model: Any, prompt: Sequence[int], images: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a prompt, where tokens before the first image see
    none, as in Meta's code: ids and log-probabilities."""
    import torch

    tokens, numbers, token = list(prompt), list[float](), model.config.image_token_index
    with torch.no_grad():
        for _ in range(count):
            given = inputs(tokens, images, token) if images else {}
            # The rule of transformers' processor is that of a prompt: what is generated sees what
            # the last token of the prompt does.
            if images:
                given["cross_attention_mask"][:, len(prompt) :] = given["cross_attention_mask"][
                    :, len(prompt) - 1 : len(prompt)
                ]
            with _blind(model, given.get("cross_attention_mask")):
                logits = model(input_ids=torch.tensor([tokens]), **given).logits[0, -1]
            scores = logits.log_softmax(-1)
            tokens.append(int(scores.argmax()))
            numbers.append(scores[tokens[-1]].item())
    return tokens[len(prompt) :], numbers


@contextmanager
def _blind(model: Any, mask: Any) -> Iterator[None]:
    """No attention to images by tokens whose whole row of the mask [1, T, images, tiles] is 0."""
    if mask is None:
        yield
        return
    sees = mask.any(-1).any(-1)[..., None].float()

    def zeroed(module: Any, given: Any, out: Any) -> Any:
        return (out[0] * sees, *out[1:])

    layers = [model.model.language_model.layers[layer].cross_attn for layer in CROSSING]
    hooks = [layer.register_forward_hook(zeroed) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
