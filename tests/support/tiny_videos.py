"""Tiny models that take clips, with all of their files, and what transformers makes of a
conversation with images and clips.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny_llava
from tests.support.tiny_towers import tiny_tower
from tests.support.video_processors import video_processor, written

VIDEO_TOKEN = "<video>"
CHAT_TEMPLATE = tiny_llava.CHAT_TEMPLATE.replace(
    "<image>{% else %}", "<image>{% elif part['type'] == 'video' %}<video>{% else %}"
)
_PATCHES = {
    **{"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 64},
    **{"max_pixels": 1024, "size": {"shortest_edge": 64, "longest_edge": 1024}},
}
_VOLUME = {"size": {"shortest_edge": 64, "longest_edge": 4096}}
KINDS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "qwen2-vl": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", _PATCHES, {"num_frames": 4}),
    "qwen2.5-vl": ("Qwen2VLImageProcessor", "Qwen2VLVideoProcessor", _PATCHES, {"fps": 4}),
    "qwen3-vl": (
        "Qwen2VLImageProcessor",
        "Qwen3VLVideoProcessor",
        _PATCHES,
        {"num_frames": 5, "image_mean": [0.5] * 3, "image_std": [0.5] * 3} | _VOLUME,
    ),
    "glm4v": ("Glm4vImageProcessor", "Glm4vVideoProcessor", _PATCHES, {"fps": 4} | _VOLUME),
    "kimi-k2.5": (
        "Kimi_K25ImageProcessor",
        "Kimi_K25VideoProcessor",
        {"patch_size": 6, "max_patches": 64, "size": {"max_height": 16, "max_width": 16}},
        {"num_frames": 6},
    ),
    "llava-onevision": (
        "LlavaOnevisionImageProcessor",
        "LlavaOnevisionVideoProcessor",
        {"size": {"height": 30, "width": 30}}
        | {"image_grid_pinpoints": [[30, 60], [60, 30], [60, 60], [90, 30], [30, 90]]},
        {"num_frames": 3},
    ),
}
"""By the name of the tower: image and video processor, what the files say of images, and what they
say of clips besides."""
_MARKS = (tiny_llava.IMAGE_TOKEN, VIDEO_TOKEN)
_IMAGE_TOKENS = {"glm4v": "<|image|>", "kimi-k2.5": "<|media_pad|>"}
_AROUND = ("<|vision_start|>", "<|vision_end|>", "<|begin_of_image|>", "<|end_of_image|>")


def save(folder: Path, name: str) -> Any:
    """Save model, tokenizer and processors; returns the transformers model."""
    model = tiny_tower(name, folder)
    image, video = _save_tokenizer(folder, _IMAGE_TOKENS.get(name, _MARKS[0]))
    kind, video_kind, settings, more = KINDS[name]
    tokens = {"image_token_id": image, "video_token_id": video}
    config = json.loads((folder / "config.json").read_text())
    config.pop("image_token_index", None)
    (folder / "config.json").write_text(json.dumps(config | tokens))
    for config_of in (model.config, model.model.config):
        config_of.image_token_id, config_of.video_token_id = image, video
    model.generation_config.eos_token_id = None
    (folder / "preprocessor_config.json").write_text(
        json.dumps(settings | {"image_processor_type": kind})
    )
    (folder / "video_preprocessor_config.json").write_text(
        json.dumps(settings | more | {"video_processor_type": video_kind})
    )
    return model


def _save_tokenizer(folder: Path, image: str) -> tuple[int, int]:
    """The tokenizer of the tiny models with the tokens of media; returns those of an image and a
    clip."""
    from tokenizers import Tokenizer

    tiny_llava.save_tokenizer(folder, CHAT_TEMPLATE.replace(_MARKS[0], image))
    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens([VIDEO_TOKEN, *_IMAGE_TOKENS.values(), *_AROUND])
    tokenizer.save(str(file))
    return tokenizer.token_to_id(image), tokenizer.token_to_id(VIDEO_TOKEN)


def continued(
    model: Any, folder: Path, name: str, parts: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a conversation: ids and log-probabilities.

    Args:
        parts: texts, images, and clips as all of their frames and the frames per second.
    """
    import torch

    ids, types, inputs = list[int](), list[int](), _Inputs(model, folder, name)
    for part in parts:
        found, kind = inputs.add(part)
        ids += found
        places = (model.config.image_token_id, model.config.video_token_id)
        types += [kind if token in places else 0 for token in found]
    tokens = torch.tensor([ids])
    out = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        **({"mm_token_type_ids": torch.tensor([types])} if inputs.patches else {}),
        **inputs.tensors,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    new = out.sequences[0, len(ids) :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return new, [score[token].item() for score, token in zip(scores, new, strict=True)]


class _Inputs:
    """Collects what the model takes of images and clips; one clip at most."""

    def __init__(self, model: Any, folder: Path, name: str) -> None:
        from tokenizers import Tokenizer

        self.tensors = dict[str, Any]()
        self.patches = name not in ("llava-onevision", "kimi-k2.5")
        self._kinds, self._model, self._folder = KINDS[name], model, folder
        self._stem = model.config.architectures[0].removesuffix("ForConditionalGeneration")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def add(self, part: Any) -> tuple[list[int], int]:
        """The tokens of a part, and the type of its embeddings: 0 text, 1 image, 2 clip."""
        if isinstance(part, str):
            return self._tokenizer.encode(part, add_special_tokens=False).ids, 0
        if isinstance(part, tuple):
            return self._video(*part), 2
        return self._image(part), 1

    def _image(self, image: Any) -> list[int]:
        import torch
        import transformers

        kind = getattr(transformers, f"{self._kinds[0]}Pil")
        made = kind.from_pretrained(self._folder)(image, return_tensors="pt")
        for key in ("pixel_values", "image_grid_thw", "image_sizes"):
            if key in made:
                before = [self.tensors[key]] if key in self.tensors else []
                self.tensors[key] = torch.cat([*before, made[key]])
        count = int(made["image_grid_thw"].prod()) // 4
        return [self._model.config.image_token_id] * count

    def _video(self, frames: Any, fps: float) -> list[int]:
        import torch

        settings = self._kinds[2] | self._kinds[3] | {"do_sample_frames": True}
        settings |= {"fps": None} if "num_frames" in settings else {}
        processor = video_processor(self._kinds[1], **settings)
        about = {"total_num_frames": len(frames), "fps": fps, "duration": len(frames) / fps}
        made = processor(
            [torch.tensor(frames).permute(0, 3, 1, 2)],
            video_metadata=[about],
            return_metadata=True,
            return_tensors="pt",
        )
        for key in ("pixel_values_videos", "video_grid_thw"):
            if key in made:
                self.tensors[key] = made[key]
        if self._stem == "Qwen2_5_VL":
            rate = made["video_metadata"][0].sampled_fps
            self.tensors["second_per_grid_ts"] = torch.tensor([2 / rate])
        text, token = written(self._stem, processor, made, {"num_image_tokens": 36})
        config = self._model.config
        place = config.image_token_id if self._stem == "Glm4v" else config.video_token_id
        whole = text.replace(token, self._tokenizer.id_to_token(place))
        ids: list[int] = self._tokenizer.encode(whole, add_special_tokens=False).ids
        return ids
