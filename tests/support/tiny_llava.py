"""A tiny random LLaVA with all of its files, and what transformers makes of a conversation.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny_models
from tests.support.tiny_dual_encoders import IMAGE, PROCESSORS

IMAGE_TOKEN = "<image>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save(folder: Path, *, seed: int = 0, template: str = CHAT_TEMPLATE, **text: Any) -> Any:
    """Save model, tokenizer and processor; returns the transformers model. 16 tokens an image."""
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    token = save_tokenizer(folder, template)
    config = LlavaConfig(
        vision_config={
            **{"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 80},
            **{"num_hidden_layers": 3, "num_attention_heads": 4, "initializer_range": 0.3},
            **{"image_size": IMAGE, "patch_size": 7},
        },
        text_config={
            **{"model_type": "llama", "vocab_size": tiny_models.VOCAB_SIZE, "hidden_size": 48},
            **{"intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6},
            **{"num_key_value_heads": 2, "max_position_embeddings": 512},
            **{"initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 1},
        }
        | text,
        image_token_index=token,
        image_seq_length=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = LlavaForConditionalGeneration(config).eval()
    made.save_pretrained(folder)
    made.generation_config.eos_token_id = None  # `continued` goes on to the end.
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS["CLIPModel"]))
    return made


def save_tokenizer(
    folder: Path, template: str = CHAT_TEMPLATE, added: Sequence[str] = (IMAGE_TOKEN,)
) -> int:
    """The tokenizer of the tiny models with some tokens more; returns the id of the first."""
    from tokenizers import Tokenizer

    tiny_models.save_tokenizer(folder)
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(list(added))
    tokenizer.save(str(file))
    changed = json.loads(settings.read_text()) | {"chat_template": template}
    settings.write_text(json.dumps(changed))
    token: int = tokenizer.token_to_id(added[0])
    return token


def continued(
    model: Any, folder: Path, text: str, images: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a rendered conversation: ids and log-probabilities.

    Args:
        text: the conversation with one image token per image.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import CLIPImageProcessorPil

    grown = text.replace(IMAGE_TOKEN, IMAGE_TOKEN * 16)
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(grown).ids])
    pixels = None
    if images:
        processor = CLIPImageProcessorPil.from_pretrained(folder)
        pixels = processor(list(images), return_tensors="pt")["pixel_values"]
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=pixels,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]
