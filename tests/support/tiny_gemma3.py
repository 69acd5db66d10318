"""A tiny random Gemma 3 that sees, with all of its files, and what transformers makes of a
conversation: pan and scan, layers with a window, image tokens that see one another.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny_llava
from tests.support.tiny_towers import TOWERS, tiny_tower

MARKS = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
PER_TILE = 9
TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace(tiny_llava.IMAGE_TOKEN, MARKS[0])
_PROCESSOR = {
    "image_processor_type": "Gemma3ImageProcessor",
    "size": {"height": 30, "width": 30},
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 15,
    "pan_and_scan_max_num_crops": 2,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def save(folder: Path, **text: Any) -> Any:
    """Save model, tokenizer and processor; returns the transformers model. `text` are changes to
    its text config."""
    from tokenizers import Tokenizer

    untied = {"tie_word_embeddings": False}  # A tied head repeats the last token.
    text = TOWERS["gemma3"][1]["text_config"] | untied | text
    model = tiny_tower("gemma3", folder, text_config=text, **untied)
    tiny_llava.save_tokenizer(folder, TEMPLATE)
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.save(str(file))
    token = tokenizer.token_to_id(MARKS[2])
    model.config.image_token_id = model.model.config.image_token_id = token
    model.generation_config.eos_token_id = None
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_token_id": token, "image_token_index": token}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": PER_TILE}))
    return model


def continued(
    model: Any, folder: Path, text: str, images: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a rendered conversation: ids and log-probabilities.

    Args:
        text: the conversation with one mark of the start of an image per image.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer

    settings = {k: v for k, v in _PROCESSOR.items() if k != "image_processor_type"}
    processor = transformers.Gemma3ImageProcessorPil(**settings)
    tiles = f"\n\n{MARKS[0]}{MARKS[2] * PER_TILE}{MARKS[1]}\n\n".replace(MARKS[0], "<START>")
    pixels = []
    for image in images:
        seen = processor(image, return_tensors="pt")
        pixels.append(seen["pixel_values"])
        crops, written = int(seen["num_crops"][0]), tiles
        if crops:
            several = " ".join([tiles] * crops)
            written = f"Here is the original image {tiles} and here are some crops to help you see "
            written += f"better {several}"
        text = text.replace(MARKS[0], written, 1)
    text = text.replace("<START>", MARKS[0])
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        token_type_ids=(ids == model.config.image_token_id).int(),
        pixel_values=torch.cat(pixels),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]
