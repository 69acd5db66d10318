"""session.update: transcription settings of a session, in OpenAI's and vLLM's format.

    {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {...}}}}
    {"type": "session.update", "model": "whisper"}

https://platform.openai.com/docs/guides/realtime-transcription
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.audio.speech_request import MAX_PROMPT
from baton_gateway.schemas.fields import ModelName

_ELSEWHERE = {"turn_detection": "Send it as 'session.audio.input.turn_detection'."}
_NO_RESPONSES = "A session that transcribes makes no responses. Leave it out."
_UNSUPPORTED = {
    "noise_reduction": "Noise is not reduced. Send null.",
    "keywords": "Put them into 'prompt'.",
    "languages": "Use 'language'.",
    "delay": "Text is sent as soon as it is there.",
}
"""Unsupported fields that would change the result, with advice."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )
    unsupported: ClassVar[Mapping[str, str]] = _UNSUPPORTED | _ELSEWHERE
    """Unsupported fields, with advice."""

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        """Raise `InvalidRequest` for fields that are not supported."""
        for name in cls.unsupported.keys() & (value if isinstance(value, dict) else {}):
            if value[name] not in (None, [], False):
                raise invalid(
                    name,
                    f"Unsupported parameter: '{name}' is not supported by this server. "
                    f"{cls.unsupported[name]}",
                    "unsupported_parameter",
                )
        return value


class AudioFormat(_Part):
    """session.audio.input.format"""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = Field(default=24_000, ge=8000, le=48_000)
    """Samples per second."""


class SpeechOptions(_Part):
    """session.audio.input.transcription; omitted fields are unchanged."""

    model: ModelName | None = None
    language: str | None = Field(default=None, max_length=16)
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT)


class TurnDetection(_Part):
    """session.audio.input.turn_detection"""

    unsupported: ClassVar[Mapping[str, str]] = {
        "create_response": _NO_RESPONSES,
        "interrupt_response": _NO_RESPONSES,
        "idle_timeout_ms": _NO_RESPONSES,
        "eagerness": "It is of 'semantic_vad', which there is none of.",
    }

    type: Literal["server_vad"]
    threshold: float = Field(default=0.5, ge=0.0, le=1.0, allow_inf_nan=False)
    """Activity from which a sound is speech."""
    prefix_padding_ms: int = Field(default=300, ge=0, le=5000)
    """Audio before the speech that is part of an item."""
    silence_duration_ms: int = Field(default=500, ge=100, le=10_000)
    """Time without speech that ends an item."""


class AudioInput(_Part):
    """session.audio.input"""

    unsupported: ClassVar[Mapping[str, str]] = _UNSUPPORTED

    format: AudioFormat | None = None
    transcription: SpeechOptions = SpeechOptions()
    turn_detection: TurnDetection | None = None


class SessionAudio(_Part):
    """session.audio"""

    input: AudioInput = AudioInput()


class SessionConfig(_Part):
    """session"""

    type: Literal["transcription"] = "transcription"
    audio: SessionAudio = SessionAudio()
    include: tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None = Field(
        default=None, max_length=1
    )


class SessionUpdate(SpeechOptions):
    """session.update"""

    session: SessionConfig | None = None
    """Absent in vLLM's format, whose fields are those of the event."""

    @property
    def options(self) -> SpeechOptions:
        """The transcription settings that it sets."""
        return self if self.session is None else self.session.audio.input.transcription

    @property
    def logprobs(self) -> bool | None:
        """Whether log-probabilities are sent; None if it does not set this."""
        has_include = self.session is not None and "include" in self.session.model_fields_set
        return bool(self.session.include) if self.session and has_include else None

    def turn_detection(self, current: TurnDetection | None) -> TurnDetection | None:
        """Turn detection after the update; `known` if it does not set this."""
        if self.session is None:
            return None
        audio = self.session.audio.input
        return audio.turn_detection if "turn_detection" in audio.model_fields_set else current

    @property
    def format(self) -> AudioFormat | None:
        """The audio settings that it sets."""
        return None if self.session is None else self.session.audio.input.format
