"""Tiny random audio-language models: built, never downloaded.

transformers and torch are imported inside the functions, so that importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import tiny_llava, tiny_models

MELS = 16
CHUNK_SECONDS = 1
AUDIO_TOKEN = 319
_STATES = 50
"""Of a chunk: its 100 frames, halved."""
_ENCODER: dict[str, Any] = {
    "num_mel_bins": MELS,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "max_source_positions": _STATES,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
HEARING: dict[str, dict[str, Any]] = {
    "Qwen2Audio": {
        "audio_config": {"model_type": "qwen2_audio_encoder", **_ENCODER},
        "text_config": {"model_type": "qwen2", **_TEXT},
        "audio_token_index": AUDIO_TOKEN,
    },
}
"""Fields of the configs, by the stem of the names of transformers' classes."""


def makers() -> dict[str, Callable[[Path], Any]]:
    """What saves a tiny checkpoint of each architecture."""
    found = {f"{stem}ForConditionalGeneration": partial(tiny_audio, stem) for stem in HEARING}
    return {"WhisperForConditionalGeneration": _whisper, **found}


def _whisper(folder: Path) -> Any:
    from tests.support.tiny_whisper import save_whisper

    return save_whisper(folder)


def tiny_config(stem: str, **changes: Any) -> Any:
    """A config of transformers; `changes` are fields that it has in place of those of the table."""
    import transformers

    config = getattr(transformers, f"{stem}Config")(**HEARING[stem] | changes)
    config.architectures = [f"{stem}ForConditionalGeneration"]
    return config


def tiny_audio(stem: str, folder: Path, *, seed: int = 0, **changes: Any) -> Any:
    """The model of transformers, saved to the folder with its feature extractor; every weight is
    random. `changes` as of `tiny_config`."""
    import torch
    import transformers

    config = tiny_config(stem, **changes)
    torch.manual_seed(seed)
    model = getattr(transformers, config.architectures[0])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            shift = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.normal_(shift, 0.15)
    model.save_pretrained(folder)
    save_extractor(folder)
    return model


AUDIO_TEXT = "<|AUDIO|>"
CHAT_TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace("'image'", "'audio'").replace(
    tiny_llava.IMAGE_TOKEN, AUDIO_TEXT
)


def save(folder: Path, stem: str = "Qwen2Audio") -> Any:
    """Save model, tokenizer and feature extractor for a server; returns the transformers model."""
    folder.mkdir(exist_ok=True)
    token = tiny_llava.save_tokenizer(folder, CHAT_TEMPLATE, AUDIO_TEXT)
    text = HEARING[stem]["text_config"] | {"vocab_size": tiny_models.VOCAB_SIZE}
    text |= {"bos_token_id": 0, "eos_token_id": 1}
    name = next(name for name in HEARING[stem] if name.startswith("audio_token_"))
    made = tiny_audio(stem, folder, text_config=text, **{name: token})
    made.generation_config.eos_token_id = None  # `continued` goes on to the end.
    return made


def continued(
    model: Any, folder: Path, text: str, sounds: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a rendered conversation: ids and log-probabilities.

    Args:
        text: the conversation with one audio token per sound of one chunk.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    made = extractor(
        list(sounds), sampling_rate=16_000, return_attention_mask=True, return_tensors="pt"
    )
    mask = made["attention_mask"]
    pieces = text.split(AUDIO_TEXT)
    grown = pieces[0]
    for frames, piece in zip(mask.sum(-1).tolist(), pieces[1:], strict=True):
        grown += AUDIO_TEXT * ((frames + 1) // 2 // 2) + piece
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(grown).ids])
    names = {"Qwen2AudioForConditionalGeneration": "feature_attention_mask"}
    name = names.get(type(model).__name__, "input_features_mask")
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        input_features=made["input_features"],
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **{name: mask},
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]


def save_extractor(folder: Path, **fields: Any) -> None:
    """The settings of a `WhisperFeatureExtractor` with chunks of `CHUNK_SECONDS`."""
    given = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MELS,
        "chunk_length": CHUNK_SECONDS,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(given | fields))
