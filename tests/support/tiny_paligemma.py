"""A tiny random PaliGemma with all of its files, and what transformers makes of a prompt whose
tokens all see one another.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.support import tiny_llava
from tests.support.tiny_towers import TOWERS, tiny_tower

DOCS = Path(__file__).parents[2] / "docs/api/multimodal.md"
PER_IMAGE = 36
_PROCESSOR = {
    "image_processor_type": "SiglipImageProcessor",
    "size": {"height": 30, "width": 30},
    "image_seq_length": PER_IMAGE,
}


def template() -> str:
    """The chat template of the documentation."""
    found = re.search(r"For PaliGemma.*?```jinja\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1].removesuffix("\n")


def save(folder: Path) -> Any:
    """Save model, tokenizer and processor; returns the transformers model."""
    token = tiny_llava.save_tokenizer(folder, template())
    untied = {"tie_word_embeddings": False}  # A tied head repeats the last token.
    text = TOWERS["paligemma2"][1]["text_config"] | {"vocab_size": 512, "sliding_window": 200}
    model = tiny_tower(
        "paligemma2", folder, text_config=text | untied, image_token_index=token, **untied
    )
    model.generation_config.eos_token_id = None
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    return model


def continued(
    model: Any, folder: Path, text: str, image: Any, count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after an image and a rendered text: ids and
    log-probabilities."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    settings = {"size": _PROCESSOR["size"]}
    pixels = transformers.SiglipImageProcessorPil(**settings)(image, return_tensors="pt")
    written = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(
        tiny_llava.IMAGE_TOKEN * PER_IMAGE + text
    )
    ids = torch.tensor([written.ids])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        token_type_ids=torch.zeros_like(ids),
        pixel_values=pixels["pixel_values"],
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]
