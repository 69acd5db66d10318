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
AUDIO_TOKEN = 319
_STATES = 50
"""Of a second: its 100 frames, halved."""
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
_NEWER: dict[str, Any] = {
    "num_mel_bins": MELS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_source_positions": _STATES,
}
"""As later encoders name them."""
_FLAMINGO = {
    "audio_config": {"model_type": "audioflamingo3_encoder", **_NEWER},
    "text_config": {"model_type": "qwen2", **_TEXT},
    "audio_token_id": AUDIO_TOKEN,
}
HEARING: dict[str, dict[str, Any]] = {
    "Qwen2Audio": {
        "audio_config": {"model_type": "qwen2_audio_encoder", **_ENCODER},
        "text_config": {"model_type": "qwen2", **_TEXT},
        "audio_token_index": AUDIO_TOKEN,
    },
    "AudioFlamingo3": _FLAMINGO,
    "MusicFlamingo": _FLAMINGO | {"audio_bos_token_id": 318, "audio_eos_token_id": 317},
    "Voxtral": {
        "audio_config": {
            **{"model_type": "voxtral_encoder", **_NEWER},
            "max_source_positions": 2 * _STATES,  # Whole stacks of four.
        },
        "text_config": {"model_type": "llama", **_TEXT, "head_dim": 12},
        "audio_token_id": AUDIO_TOKEN,
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
    save_extractor(folder, chunk_length=chunk_seconds(stem))
    return model


def chunk_seconds(stem: str) -> int:
    """Seconds of a whole chunk."""
    seconds: int = HEARING[stem]["audio_config"]["max_source_positions"] // _STATES
    return seconds


AUDIO_TEXT = "<|AUDIO|>"
_MARKS = ("<|sound_bos|>", "<|sound_eos|>")
CHAT_TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace("'image'", "'audio'").replace(
    tiny_llava.IMAGE_TOKEN, AUDIO_TEXT
)


def save(folder: Path, stem: str = "Qwen2Audio") -> Any:
    """Save model, tokenizer and feature extractor for a server; returns the transformers model."""
    folder.mkdir(exist_ok=True)
    token = tiny_llava.save_tokenizer(folder, CHAT_TEMPLATE, (AUDIO_TEXT, *_MARKS))
    text = HEARING[stem]["text_config"] | {"vocab_size": tiny_models.VOCAB_SIZE}
    text |= {"bos_token_id": 0, "eos_token_id": 1}
    name = next(name for name in HEARING[stem] if name.startswith("audio_token_"))
    made = tiny_audio(stem, folder, text_config=text, **{name: token})
    made.generation_config.eos_token_id = None  # `continued` goes on to the end.
    return made


def heard(folder: Path, sounds: Sequence[Any], stem: str) -> tuple[dict[str, Any], list[int]]:
    """What a model of transformers takes of sounds, and the number of embeddings of each."""
    import torch
    from transformers import WhisperFeatureExtractor

    extractor, second = WhisperFeatureExtractor.from_pretrained(folder), 16_000
    told: dict[str, Any] = {"sampling_rate": second, "return_tensors": "pt"}
    if stem == "Voxtral":  # Whole chunks, of which the loudest value is that of all.
        chunk = chunk_seconds(stem) * second
        told |= {"padding": True, "truncation": False, "pad_to_multiple_of": chunk}
        made = [extractor(sound, **told)["input_features"][0] for sound in sounds]
        parts = [part.reshape(MELS, -1, chunk // 160).transpose(0, 1) for part in made]
        counts = [len(part) * chunk // 160 // 8 for part in parts]
        return {"input_features": torch.cat(parts)}, counts
    parts = [sound[at : at + second] for sound in sounds for at in range(0, len(sound), second)]
    made = extractor(parts, return_attention_mask=True, **told)
    mask = made["attention_mask"]
    tokens = iter([(((n - 1) // 2 + 1) - 2) // 2 + 1 for n in mask.sum(-1).tolist()])
    counts = [sum(next(tokens) for _ in range(-(-len(sound) // second))) for sound in sounds]
    name = "feature_attention_mask" if stem == "Qwen2Audio" else "input_features_mask"
    return {"input_features": made["input_features"], name: mask}, counts


def continued(
    model: Any, folder: Path, text: str, sounds: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a rendered conversation: ids and log-probabilities.

    Args:
        text: the conversation with one audio token per sound.
    """
    import torch
    from tokenizers import Tokenizer

    stem = type(model).__name__.removesuffix("ForConditionalGeneration")
    inputs, counts = heard(folder, sounds, stem)
    begin, end = _MARKS if stem == "MusicFlamingo" else ("", "")
    pieces = text.split(AUDIO_TEXT)
    grown = pieces[0]
    for number, piece in zip(counts, pieces[1:], strict=True):
        grown += f"{begin}{AUDIO_TEXT * number}{end}{piece}"
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(grown).ids])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **inputs,
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]


def save_extractor(folder: Path, **fields: Any) -> None:
    """The settings of a `WhisperFeatureExtractor`, with chunks of a second."""
    given = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MELS,
        "chunk_length": 1,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(given | fields))
