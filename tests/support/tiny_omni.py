"""Tiny thinkers of Qwen2.5-Omni and Qwen3-Omni with all of their files, and what transformers makes
of a conversation with a clip that they see and hear.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import tiny_llava
from tests.support.tiny_towers import tiny_tower
from tests.support.video_processors import video_processor

IMAGE, VIDEO, AUDIO = tiny_llava.IMAGE_TOKEN, "<video>", "<audio>"
STARTS = ("<|audio_start|>", "<|audio_end|>", "<|vision_start|>", "<|vision_end|>")
_AROUND = f"{STARTS[2]}%s{STARTS[3]}"
CHAT_TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace(
    "<image>{% else %}",
    f"{_AROUND % IMAGE}{{% elif part['type'] == 'video' %}}{_AROUND % VIDEO}{{% else %}}",
)
NAMES = ("qwen2.5-omni", "qwen3-omni")
_FIELDS = {
    **{"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": AUDIO},
    **{"audio_start_token_id": STARTS[0], "audio_end_token_id": STARTS[1]},
    **{"vision_start_token_id": STARTS[2], "vision_end_token_id": STARTS[3]},
}
_PATCHES = {
    **{"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 64},
    **{"max_pixels": 1024, "size": {"shortest_edge": 64, "longest_edge": 1024}},
}
RATE = 2
"""Frames per second that are seen."""
_MELS = {NAMES[0]: 20, NAMES[1]: 128}


def save(folder: Path, name: str) -> Any:
    """Save model, tokenizer and processors; returns the transformers model."""
    import transformers

    model = _model(folder, name)
    added = _save_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    for field in ("image_token_index", "video_token_index", "audio_token_index"):
        config.pop(field, None)
    ids = {field: added[token] for field, token in _FIELDS.items()}
    for field, value in ids.items():
        for part in (model.config, model.model.config):
            setattr(part, field, value)
    (folder / "config.json").write_text(json.dumps(config | ids))
    model.generation_config.eos_token_id = None
    extractor = transformers.WhisperFeatureExtractor(feature_size=_MELS[name], chunk_length=4)
    settings = extractor.to_dict() | _PATCHES | {"image_processor_type": "Qwen2VLImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, default=str))
    video = _PATCHES | {"video_processor_type": "Qwen2VLVideoProcessor", "fps": RATE}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return model


def _model(folder: Path, name: str) -> Any:
    if name == NAMES[1]:
        return tiny_tower(name, folder, position_id_per_seconds=13)
    import transformers

    from tests.oracles.audio import qwen
    from tests.oracles.audio.heard import saved

    fields = qwen.OMNI | {"position_id_per_seconds": 25, "seconds_per_chunk": 2}
    kind = "Qwen2_5OmniThinker"
    config = getattr(transformers, f"{kind}Config")(**fields)
    return saved(folder, f"{kind}ForConditionalGeneration", config)


def _save_tokenizer(folder: Path) -> dict[str, int]:
    """The tokenizer of the tiny models with the tokens of media; returns their ids."""
    from tokenizers import Tokenizer

    added = (IMAGE, VIDEO, AUDIO, *STARTS)
    tiny_llava.save_tokenizer(folder, CHAT_TEMPLATE, added)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {token: tokenizer.token_to_id(token) for token in added}


def token_ids(model: Any) -> list[int]:
    """Tokens of images, clips and sounds, and those around sounds and around what is seen."""
    return [getattr(model.config, field) for field in _FIELDS]


def continued(
    model: Any, folder: Path, name: str, clip: tuple[Any, float, Any], count: int
) -> tuple[list[int], list[int], list[float]]:
    """What transformers writes greedily after the clip and the text "two?": ids of the prompt, and
    ids and log-probabilities behind it.

    Args:
        clip: all of its frames, the frames per second, and its sound.
    """
    import torch
    from tokenizers import Tokenizer

    frames, fps, sound = clip
    seen = _seen(frames, fps)
    heard, tokens = _heard(folder, name, sound)
    seconds = 2 / RATE
    text = _written(name, seen["video_grid_thw"], tokens, seconds)
    whole = f"<|user|>{_AROUND % text}two?<|end|><|assistant|>"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(whole, add_special_tokens=False).ids])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        **{key: seen[key] for key in ("pixel_values_videos", "video_grid_thw")},
        **heard,
        video_second_per_grid=torch.tensor([seconds]),
        use_audio_in_video=True,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    new = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return ids[0].tolist(), new, [s[t].item() for s, t in zip(scores, new, strict=True)]


def _seen(frames: Any, fps: float) -> Any:
    import torch

    settings = _PATCHES | {"do_sample_frames": True, "fps": RATE}
    about = {"total_num_frames": len(frames), "fps": fps, "duration": len(frames) / fps}
    return video_processor("Qwen2VLVideoProcessor", **settings)(
        [torch.tensor(frames).permute(0, 3, 1, 2)],
        video_metadata=[about],
        return_tensors="pt",
    )


def _heard(folder: Path, name: str, sound: Any) -> tuple[dict[str, Any], int]:
    """What the model takes of a sound, and the number of its embeddings."""
    from transformers import WhisperFeatureExtractor

    processing = _processing(name)
    extractor = WhisperFeatureExtractor.from_pretrained(folder)
    padding = "max_length" if name == NAMES[0] else True
    made = extractor(
        sound,
        sampling_rate=16_000,
        padding=padding,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    mask = made["attention_mask"]
    tokens = int(processing._get_feat_extract_output_lengths(mask.sum(-1))[0])
    return {"input_features": made["input_features"], "feature_attention_mask": mask}, tokens


def _processing(name: str) -> Any:
    from transformers.models.qwen2_5_omni import processing_qwen2_5_omni
    from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe

    return processing_qwen2_5_omni if name == NAMES[0] else processing_qwen3_omni_moe


def _written(name: str, grid: Any, tokens: int, seconds: float) -> str:
    """What the processor of transformers writes for the clip."""
    kind = "Qwen2_5OmniProcessor" if name == NAMES[0] else "Qwen3OmniMoeProcessor"
    processor = getattr(_processing(name), kind)
    return written(processor, grid, tokens, seconds, (VIDEO, AUDIO, *STARTS[:2]))


def written(
    processor: Any, grid: Any, tokens: int, seconds: float, names: tuple[str, str, str, str]
) -> str:
    """What a class of processors of transformers writes for a clip with its sound.

    Args:
        grid: [1, 3].
        tokens: embeddings of its sound.
        seconds: between two frames of the grid.
        names: tokens of clip and sound, and those around both.
    """
    made = processor.__new__(processor)
    made.video_processor = type("Sizes", (), {"merge_size": 2})
    made.video_token, made.audio_token, made.audio_bos_token, made.audio_eos_token = names
    text: str = made.replace_video_with_audio_token(
        {"video_grid_thw": grid, "video_second_per_grid": [seconds]},
        0,
        {"num_audio_tokens": [tokens]},
        0,
        position_id_per_seconds=processor.position_id_per_seconds,
        seconds_per_chunk=processor.seconds_per_chunk,
    )
    return text
