"""Audio input by architecture: processor, token and placeholder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from baton_mm_preprocess.audio import conformer_readers, readers, windowed_readers
from baton_mm_preprocess.audio.readers import AudioFiles, AudioReader
from baton_mm_preprocess.processors.families import single
from baton_mm_preprocess.processors.placeholders import Encode, Piece

AudioPlaceholder: TypeAlias = Callable[[int], Iterable[Piece]]
"""Number of embeddings -> placeholder pieces."""


def plain(num_tokens: int) -> list[Piece]:
    """Audio tokens only."""
    return [num_tokens]


def gemma3n(num_tokens: int) -> list[Piece]:
    """Audio tokens between marks; the end mark has the last embedding."""
    return ["\n\n<start_of_audio>", num_tokens - 1, "<end_of_audio>\n\n"]


def music_flamingo(num_tokens: int) -> list[Piece]:
    """Audio tokens between marks."""
    return ["<|sound_bos|>", num_tokens, "<|sound_eos|>"]


@dataclass(frozen=True, slots=True)
class AudioFamily:
    """Audio input of a family."""

    reader: AudioReader
    token: str | int
    """Token whose embedding is replaced, if the config names none."""
    placeholder: AudioPlaceholder = plain
    marker: str = ""
    """Token of the chat template that marks a sound; the audio token if empty."""
    names: tuple[str, ...] = ("audio_token_id", "audio_token_index")
    """Config fields that may name the token."""
    alone: bool = False
    """Whether a request with sounds must not have images."""
    needs: tuple[str, ...] = ()
    """Config fields of which a checkpoint with audio input has at least one."""
    cross: bool = False
    """Whether tokens attend to the encoder's states (cross-attention), which replace no
    embeddings."""
    alongside: bool = False
    """Whether embeddings are added to those of all tokens, instead of replacing some."""

    def audio_token(self, files: AudioFiles, encode: Encode) -> int:
        """Id of the token whose embedding is replaced. Raises `ModelError`."""
        for name in self.names:
            for config in (files.config, files.encoder):
                if isinstance(value := config.get(name), int):
                    return value
        return self.token if isinstance(self.token, int) else single(self.token, encode)

    def marker_token(self, files: AudioFiles, encode: Encode) -> int:
        """Id of the marker. Raises `ModelError`."""
        return single(self.marker, encode) if self.marker else self.audio_token(files, encode)


_OMNI2 = AudioFamily(windowed_readers.qwen2_5_omni, "<|AUDIO|>")
_OMNI3 = AudioFamily(windowed_readers.qwen3_omni, "<|audio_pad|>")
_PHI4 = AudioFamily(
    conformer_readers.phi4_multimodal,
    200_011,
    alone=True,
    needs=("audio_config", "audio_processor"),
)
_STREAMED = AudioFamily(
    windowed_readers.voxtral_realtime, "[STREAMING_PAD]", alongside=True, names=()
)
AUDIO_FAMILIES: dict[str, AudioFamily] = {
    "GraniteSpeechForConditionalGeneration": AudioFamily(
        conformer_readers.granite_speech, "<|audio|>"
    ),
    "Gemma3nForConditionalGeneration": AudioFamily(
        conformer_readers.gemma3n, "<audio_soft_token>", gemma3n, needs=("audio_config",)
    ),
    "Phi4MMForCausalLM": _PHI4,
    "Phi4MultimodalForCausalLM": _PHI4,
    "WhisperForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=1, max_chunks=1, masked=False),
        "<|startoftranscript|>",
        names=("decoder_start_token_id",),
        cross=True,
    ),
    "Qwen2AudioForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=2, max_chunks=1), "<|AUDIO|>"
    ),
    "FunAudioChatForConditionalGeneration": AudioFamily(
        windowed_readers.fun_audio_chat, "<|AUDIO|>"
    ),
    "GlmAsrForConditionalGeneration": AudioFamily(windowed_readers.glm_asr, "<|pad|>"),
    "Qwen2_5OmniModel": _OMNI2,
    "Qwen2_5OmniForConditionalGeneration": _OMNI2,
    "Qwen2_5OmniThinkerForConditionalGeneration": _OMNI2,
    "Qwen3OmniMoeForConditionalGeneration": _OMNI3,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _OMNI3,
    "Qwen3ASRForConditionalGeneration": AudioFamily(windowed_readers.qwen3_asr, "<|audio_pad|>"),
    "AudioFlamingo3ForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=2, max_chunks=20), "<sound>"
    ),
    "MiDashengLMModel": AudioFamily(windowed_readers.midasheng_lm, "<|AUDIO|>"),
    "MusicFlamingoForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=2, max_chunks=40), "<sound>", music_flamingo
    ),
    "UltravoxModel": AudioFamily(readers.ultravox, "<|audio|>"),
    "VoxtralRealtimeForConditionalGeneration": _STREAMED,
    "VoxtralRealtimeGeneration": _STREAMED,
    "VoxtralForConditionalGeneration": AudioFamily(
        readers.whisper_chunks(stack=4, masked=False, shared_range=True), "[AUDIO]"
    ),
}
"""Family by the architecture's name in config.json."""
