"""The thinkers of Qwen2.5-Omni and Qwen3-Omni, and Qwen3-ASR, of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tests.oracles.audio.conformers import TEXT
from tests.oracles.audio.heard import Clips, Heard, clips, heard, saved
from tests.support import tiny_towers

AUDIO_TOKEN = 317
_SOUNDS: dict[str, Any] = {
    **{"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
    **{"num_mel_bins": 20, "output_dim": 48},
}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
OMNI: dict[str, Any] = {
    "text_config": TEXT | {"rope_parameters": _ROPE, "tie_word_embeddings": False},
    "vision_config": {"depth": 4, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4}
    | {"intermediate_size": 40, "patch_size": 4, "window_size": 16}
    | {"fullatt_block_indexes": [1, 3]},
    "audio_config": _SOUNDS | {"n_window": 4},
    **{"image_token_index": 319, "video_token_index": 318, "audio_token_index": AUDIO_TOKEN},
    **{"audio_start_token_id": 315, "audio_end_token_id": 314, "vision_start_token_id": 316},
    **{"pad_token_id": 0, "position_id_per_seconds": 25},
}


@heard(
    "Qwen2_5OmniThinkerForConditionalGeneration",
    "Qwen2_5OmniModel",
    "Qwen2_5OmniForConditionalGeneration",
)
@torch.no_grad()
def qwen2_5_omni(folder: Path, architecture: str) -> Heard:
    """Whole windows, and a begun one with an odd number of frames."""
    import transformers

    thinker = "Qwen2_5OmniThinkerForConditionalGeneration"
    model = saved(folder, thinker, transformers.Qwen2_5OmniThinkerConfig(**OMNI))
    if architecture != thinker:
        as_published(folder, architecture, {"token2wav.a.weight": torch.ones(2)})
    made = clips(20, 5, 8, 30)
    found = [
        model.model.audio_tower(clip[0], feature_lens=torch.tensor([grid[1]])).last_hidden_state
        for clip, grid in made
    ]
    return Heard(windows(made, 8), found, model, AUDIO_TOKEN)


@heard("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3OmniMoeForConditionalGeneration")
@torch.no_grad()
def qwen3_omni(folder: Path, architecture: str) -> Heard:
    """A begun window alone, and several, of which two see one another. Embeddings are as wide as
    those of images, which reach two layers more."""
    model = tiny_towers.tiny_tower("qwen3-omni", folder)
    if architecture != "Qwen3OmniMoeThinkerForConditionalGeneration":
        as_published(folder, architecture, {"code2wav.a.bias": torch.ones(2)})
    made = clips(128, 37, 100, 519)
    found = [
        model.model.audio_tower(clip[0], feature_lens=torch.tensor([grid[1]])).last_hidden_state
        for clip, grid in made
    ]
    wide = [F.pad(part, (0, 2 * part.shape[1])) for part in found]
    return Heard(windows(made, 100, alone=False), wide, model, AUDIO_TOKEN)


@heard("Qwen3ASRForConditionalGeneration")
@torch.no_grad()
def qwen3_asr(folder: Path, architecture: str) -> Heard:
    """Zeros fill up the last window."""
    import transformers

    text = {"model_type": "qwen3", **TEXT, "head_dim": 12}
    sounds = _SOUNDS | {"downsample_hidden_size": 8, "n_window_infer": 200}
    config = transformers.Qwen3ASRConfig(
        text_config=text, audio_config=sounds, audio_token_id=AUDIO_TOKEN
    )
    model = saved(folder, architecture, config)
    made = windows(clips(20, 37, 100, 519), 100)
    found = []
    for clip, (count, frames, _) in made:
        whole = clip.transpose(0, 1).flatten(1)[None]
        mask = (torch.arange(100 * count) < frames).long()[None]
        found.append(model.get_audio_features(whole, mask).pooler_output)
    return Heard(made, found, model, AUDIO_TOKEN)


@heard("GlmAsrForConditionalGeneration")
@torch.no_grad()
def glm_asr(folder: Path, architecture: str) -> Heard:
    """Chunks whose padding is seen, of sounds that end in the first, the second and the third."""
    import transformers

    sounds = {"num_mel_bins": 20, "hidden_size": 16, "intermediate_size": 64}
    sounds |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    sounds |= {"max_position_embeddings": 100, "rope_parameters": {"rope_theta": 1e4}}
    sounds["rope_parameters"] |= {"rope_type": "default", "partial_rotary_factor": 0.5}
    config = transformers.GlmAsrConfig(
        text_config=TEXT, audio_config=sounds, audio_token_id=AUDIO_TOKEN
    )
    model = saved(folder, architecture, config)
    made = [
        (clip, (len(clip), n, 0)) for (clip, _), n in zip(_chunks(), (87, 261, 597), strict=True)
    ]
    found = []
    for clip, (count, frames, _) in made:
        seen = torch.arange(200 * count).view(count, 200) < frames
        found.append(model.get_audio_features(clip, seen.long()).pooler_output)
    return Heard(made, found, model, AUDIO_TOKEN)


def _chunks() -> Clips:
    whole = [clip for clip, _ in clips(20, 200, 400, 600)]
    return [(torch.cat(torch.split(clip, 200, 2)), (clip.shape[2] // 200, 0, 0)) for clip in whole]


def windows(made: Clips, size: int, *, alone: bool = True) -> Clips:
    """Clips in windows of so many frames, the last of which is filled up with zeros, unless it is
    the only one and is not to be."""
    found: Clips = []
    for clip, (_, frames, _) in made:
        count = -(-frames // size)
        if count == 1 and not alone:
            found.append((clip, (1, frames, 0)))
            continue
        padded = F.pad(clip[0], (0, count * size - frames))
        cut = torch.unflatten(padded, 1, (count, size)).transpose(0, 1).contiguous()
        found.append((cut, (count, frames, 0)))
    return found


def as_published(folder: Path, architecture: str, others: dict[str, Any]) -> None:
    """A thinker beside what speaks, as Qwen saves it."""
    tensors = {f"thinker.{n}": t for n, t in load_file(folder / "model.safetensors").items()}
    tensors |= {"talker.codec_head.weight": torch.ones(2, 2)} | others
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = folder / "config.json"
    fields = {"thinker_config": json.loads(config.read_text()), "architectures": [architecture]}
    config.write_text(json.dumps(fields))
