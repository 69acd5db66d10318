"""Video input by architecture: video processor, token and placeholder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton_mm_preprocess.processors.families import single
from baton_mm_preprocess.processors.placeholders import Encode
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.video import placeholders
from baton_mm_preprocess.video.clip_sound import SoundTimes
from baton_mm_preprocess.video.placeholders import ClipPlaceholder


@dataclass(frozen=True, slots=True)
class VideoFamily:
    """Video input of a family."""

    kind: str
    """Default video processor, a key of `readers.READERS`."""
    marker: str
    """Token of the chat template that marks a clip."""
    placeholder: ClipPlaceholder = placeholders.plain
    token: str = ""
    """Token whose embedding is replaced; if empty, the one of `names` in the config, or else the
    marker."""
    names: tuple[str, ...] = ("video_token_id", "video_token_index")
    """Config fields that may name the token."""
    sound: SoundTimes | None = None
    """How the sound of a clip is interleaved with its tokens; None if the model cannot combine
    them."""

    def video_token(self, files: Files, encode: Encode) -> int:
        """Id of the token whose embedding is replaced. Raises `ModelError`."""
        if self.token:
            return single(self.token, encode)
        return self.marker_token(files, encode)

    def marker_token(self, files: Files, encode: Encode) -> int:
        """Id of the marker. Raises `ModelError`."""
        for name in self.names:
            if isinstance(value := files.config.get(name), int):
                return value
        return single(self.marker, encode)


_QWEN2 = VideoFamily("Qwen2VLVideoProcessor", "<|video_pad|>")
_OMNI2 = VideoFamily(
    "Qwen2VLVideoProcessor",
    "<|VIDEO|>",
    sound=SoundTimes(("<|audio_bos|>", "<|audio_eos|>"), per_second=25.0, chunk_seconds=2.0),
)
_OMNI3 = replace(_QWEN2, sound=SoundTimes(("<|audio_start|>", "<|audio_end|>"), per_second=13.0))
_INTERNVL = VideoFamily("InternVLVideoProcessor", "<video>", placeholders.internvl, "<IMG_CONTEXT>")
_KIMI = VideoFamily(
    "Kimi_K25VideoProcessor",
    "<|kimi_k25_video_placeholder|>",
    placeholders.kimi_k25,
    "<|media_pad|>",
)
_QWEN3 = VideoFamily("Qwen3VLVideoProcessor", "<|video_pad|>", placeholders.qwen3)
VIDEO_FAMILIES: dict[str, VideoFamily] = {
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Exaone4_5_ForConditionalGeneration": _QWEN2,
    "Qwen2_5OmniModel": _OMNI2,
    "Qwen2_5OmniForConditionalGeneration": _OMNI2,
    "Qwen2_5OmniThinkerForConditionalGeneration": _OMNI2,
    "Qwen3OmniMoeForConditionalGeneration": _OMNI3,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI3,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3,
    "Glm4vForConditionalGeneration": VideoFamily(
        "Glm4vVideoProcessor", "<|video|>", placeholders.glm4v, "<|image|>"
    ),
    "KimiK25ForConditionalGeneration": _KIMI,
    "Kimi_K25ForConditionalGeneration": _KIMI,
    "LlavaOnevisionForConditionalGeneration": VideoFamily(
        "LlavaOnevisionVideoProcessor", "<video>"
    ),
    "InternVLForConditionalGeneration": _INTERNVL,
    "InternS1ForConditionalGeneration": _INTERNVL,
    "SmolVLMForConditionalGeneration": VideoFamily(
        "SmolVLMVideoProcessor", "<video>", placeholders.smolvlm, "<image>"
    ),
}
"""Family by the architecture's name in config.json; the others accept images only."""
