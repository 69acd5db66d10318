"""Models that take audio: processor, token and placeholder, by architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from baton_mm_preprocess.audio import conformer_readers, readers, windowed_readers
from baton_mm_preprocess.audio.readers import AudioFiles, AudioReader
from baton_mm_preprocess.processors.families import single
from baton_mm_preprocess.processors.placeholders import Encode, Piece

AudioPlaceholder: TypeAlias = Callable[[int], Iterable[Piece]]
"""The number of embeddings of a sound to what stands for it."""


def plain(num_tokens: int) -> list[Piece]:
    """Audio tokens alone."""
    return [num_tokens]


def gemma3n(num_tokens: int) -> list[Piece]:
    """Audio tokens between their marks, of which the last is the last embedding."""
    return ["\n\n<start_of_audio>", num_tokens - 1, "<end_of_audio>\n\n"]


def music_flamingo(num_tokens: int) -> list[Piece]:
    """Audio tokens between their marks."""
    return ["<|sound_bos|>", num_tokens, "<|sound_eos|>"]


@dataclass(frozen=True, slots=True)
class AudioFamily:
    """How a family takes sounds."""

    reader: AudioReader
    token: str | int
    """Token in whose place an embedding goes, if the config names none."""
    placeholder: AudioPlaceholder = plain
    marker: str = ""
    """Token by which the chat template says that there is a sound; the audio token if empty."""
    names: tuple[str, ...] = ("audio_token_id", "audio_token_index")
    """Fields of the config that may name the token."""
    alone: bool = False
    """Whether a request with sounds may have no images."""
    needs: tuple[str, ...] = ()
    """Fields of the config of which a checkpoint with audio input has one."""
    cross: bool = False
    """Whether tokens attend to what the encoder makes, which takes the place of none."""
    alongside: bool = False
    """Whether embeddings are added to those of all tokens, and take the place of none."""

    def audio_token(self, files: AudioFiles, encode: Encode) -> int:
        """Id of the token in whose place an embedding goes. Raises `ModelError`."""
        for name in self.names:
            for said in (files.config, files.encoder):
                if isinstance(value := said.get(name), int):
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
        readers.whisper_chunks(stack=4, masked=False, whole=True), "[AUDIO]"
    ),
}
"""By the name of the architecture in config.json."""
