"""Requests for transcripts and translations. All fields of a multipart form are text.

https://platform.openai.com/docs/api-reference/audio
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.fields import INT32, INT64, ModelName

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
MAX_PROMPT = 16_384
"""Maximum characters of the text before the recording, of which the end is used."""
_LISTS = ("timestamp_granularities[]", "include[]")
_UNSUPPORTED = {
    "known_speaker_names[]": "Speakers are not identified.",
    "known_speaker_references[]": "Speakers are not identified.",
    "keywords[]": "Put them into 'prompt'.",
    "languages[]": "Use 'language'.",
}
"""Unsupported fields of OpenAI's API that would change the answer, with advice."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class SpeechRequest(BaseModel):
    """Fields of both endpoints, with vLLM's extensions."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", protected_namespaces=(), hide_input_in_errors=True
    )

    model: ModelName
    prompt: str = Field(default="", max_length=MAX_PROMPT)
    response_format: ResponseFormat = "json"
    temperature: Finite = Field(default=0.0, ge=0.0, le=1.0)
    stream: bool = False
    user: str | None = Field(default=None, max_length=1024)
    priority: int = Field(default=0, ge=-INT32 - 1, le=INT32)
    """Lower values run first (vLLM)."""

    seed: int | None = Field(default=None, ge=-INT64 - 1, le=INT64)
    top_p: Finite = Field(default=1.0, ge=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, le=INT32)
    min_p: Finite = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: Finite = Field(default=1.0, ge=0.01, le=10.0)
    presence_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32)
    """Maximum tokens per chunk of the recording."""

    # Parameters of Whisper's command line: failed outputs are regenerated at higher temperatures.
    compression_ratio_threshold: Finite | None = Field(default=None, gt=0.0, le=1000.0)
    logprob_threshold: Finite | None = Field(default=None, ge=-1000.0, le=0.0)
    no_speech_threshold: Finite | None = Field(default=None, ge=0.0, le=1.0)
    temperature_increment_on_fallback: Finite = Field(default=0.2, ge=0.05, le=1.0)

    @property
    def falls_back(self) -> bool:
        """Whether outputs may be regenerated, or left out."""
        limits = self.compression_ratio_threshold, self.logprob_threshold, self.no_speech_threshold
        return any(limit is not None for limit in limits)

    @property
    def timed(self) -> bool:
        """Whether the output has timestamps."""
        return self.response_format in ("srt", "verbose_json", "vtt")

    @property
    def asks_words(self) -> bool:
        """Whether the answer has the times of words."""
        return False

    @property
    def asks_segments(self) -> bool:
        """Whether a "verbose_json" has segments."""
        return True

    @property
    def asks_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        return False

    def check(self) -> None:
        """Raise `InvalidRequest` for fields that exclude one another."""
        if self.stream and self.falls_back:
            raise invalid(
                "stream",
                "Unsupported value: what is streamed cannot be written again. Leave out the "
                "thresholds.",
                "unsupported_value",
            )
        if self.stream and self.timed:
            raise invalid(
                "stream",
                f"Unsupported value: a transcript as '{self.response_format}' cannot be streamed. "
                "Use 'json'.",
                "unsupported_value",
            )


class TranscriptionRequest(SpeechRequest):
    """POST /v1/audio/transcriptions"""

    language: str | None = Field(default=None, max_length=16)
    """ISO 639 code of the spoken language; detected by default."""
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = Field(
        default=(), alias="timestamp_granularities[]", max_length=2
    )
    include: tuple[Literal["logprobs"], ...] = Field(default=(), alias="include[]", max_length=1)
    chunking_strategy: Literal["auto"] = "auto"
    """Long recordings are always cut at quiet places."""

    @property
    def asks_words(self) -> bool:
        """Whether the answer has the times of words."""
        return "word" in self.timestamp_granularities

    @property
    def asks_segments(self) -> bool:
        """Whether a "verbose_json" has segments."""
        return not self.timestamp_granularities or "segment" in self.timestamp_granularities

    @property
    def asks_logprobs(self) -> bool:
        """Whether the answer has log-probabilities."""
        return bool(self.include)

    def check(self) -> None:
        """Raise `InvalidRequest` for fields that exclude one another or exceed a limit."""
        super().check()
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise invalid(
                "timestamp_granularities[]",
                "The 'timestamp_granularities[]' parameter needs 'response_format' to be "
                "'verbose_json'.",
            )
        if self.include and self.response_format != "json":
            raise invalid(
                "include[]", "The 'include[]' parameter needs 'response_format' to be 'json'."
            )


class TranslationRequest(SpeechRequest):
    """POST /v1/audio/translations"""

    language: str | None = Field(default=None, max_length=16)
    """ISO 639 code of the spoken language (vLLM); detected by default."""
    to_language: Literal["en"] = "en"
    """Language of the translation (vLLM)."""


def form_fields(items: list[tuple[str, str]]) -> dict[str, Any]:
    """Convert the text fields of a form to request fields: a list where several values are allowed.

    Raises `InvalidRequest` for an unsupported field, and for a repeated one that allows one value.
    """
    fields: dict[str, Any] = {}
    for name, value in items:
        if name in _UNSUPPORTED:
            raise invalid(
                name,
                f"Unsupported parameter: '{name}' is not supported by this server. "
                f"{_UNSUPPORTED[name]}",
                "unsupported_parameter",
            )
        if name in _LISTS:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise invalid(name[:64], f"Invalid '{name[:64]}': it comes twice.")
        else:
            fields[name] = value
    return fields
