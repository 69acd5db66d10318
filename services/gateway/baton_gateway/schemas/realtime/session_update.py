"""session.update: how a session transcribes, as OpenAI's clients say it and as vLLM's do.

    {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {...}}}}
    {"type": "session.update", "model": "whisper"}

https://platform.openai.com/docs/guides/realtime-transcription
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.audio.speech_request import MAX_PROMPT
from baton_gateway.schemas.fields import ModelName

_UNSUPPORTED = {
    "turn_detection": "Turns are not detected. Send null, and commit the audio of each turn.",
    "noise_reduction": "Noise is not reduced. Send null.",
    "keywords": "Put them into 'prompt'.",
    "languages": "Use 'language'.",
    "delay": "Text is sent as soon as it is there.",
}
"""Fields whose effect a client would miss, with advice."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        """Raise `InvalidRequest` for fields that are not supported."""
        for name in _UNSUPPORTED.keys() & (value if isinstance(value, dict) else {}):
            if value[name] not in (None, []):
                raise invalid(
                    name,
                    f"Unsupported parameter: '{name}' is not supported by this server. "
                    f"{_UNSUPPORTED[name]}",
                    "unsupported_parameter",
                )
        return value


class AudioFormat(_Part):
    """session.audio.input.format"""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = Field(default=24_000, ge=8000, le=48_000)
    """Samples per second."""


class SpeechOptions(_Part):
    """session.audio.input.transcription; fields that are left out stay as they are."""

    model: ModelName | None = None
    language: str | None = Field(default=None, max_length=16)
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT)


class AudioInput(_Part):
    """session.audio.input"""

    format: AudioFormat | None = None
    transcription: SpeechOptions = SpeechOptions()


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
    """Absent in vLLM's form, whose fields are those of the event."""

    @property
    def options(self) -> SpeechOptions:
        """What it says of the transcription."""
        return self if self.session is None else self.session.audio.input.transcription

    @property
    def logprobs(self) -> bool | None:
        """Whether log-probabilities are sent; None if it says nothing of that."""
        given = self.session is not None and "include" in self.session.model_fields_set
        return bool(self.session.include) if self.session and given else None

    @property
    def format(self) -> AudioFormat | None:
        """What it says of the audio."""
        return None if self.session is None else self.session.audio.input.format
