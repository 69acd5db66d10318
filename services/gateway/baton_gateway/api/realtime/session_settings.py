"""Transcription settings of a session."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.http.errors import invalid
from baton_gateway.schemas.audio.speech_request import TranscriptionRequest
from baton_gateway.schemas.realtime.server_events import (
    Audio,
    Format,
    Input,
    ServerVad,
    Transcribing,
)
from baton_gateway.schemas.realtime.session_update import SessionUpdate, TurnDetection
from baton_gateway.streaming.realtime_events import ItemEvents, PlainEvents, TranscriptEvents

_VLLM_RATE, _OPENAI_RATE = 16_000, 24_000


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings changed by `session.update`. Before the first update, and after one in vLLM's
    format, events and the sample rate are vLLM's."""

    model: str | None = None
    language: str | None = None
    prompt: str = ""
    rate: int = _VLLM_RATE
    """Samples per second."""
    logprobs: bool = False
    """Whether log-probabilities are sent."""
    turn_detection: TurnDetection | None = None
    """Turn detection; None means that the client commits."""
    events: TranscriptEvents = field(default_factory=PlainEvents)

    def updated(self, update: SessionUpdate) -> SessionSettings:
        """Return the settings with the fields of an update."""
        options = update.options
        fields: dict[str, Any] = {
            name: getattr(options, name)
            for name in ("model", "language", "prompt")
            if name in options.model_fields_set
        }
        fields["prompt"] = fields.get("prompt", self.prompt) or ""
        fields["turn_detection"] = update.turn_detection(self.turn_detection)
        if update.session is None:
            return replace(self, **fields, rate=_VLLM_RATE, events=PlainEvents())
        current = self.rate if isinstance(self.events, ItemEvents) else _OPENAI_RATE
        rate = update.format.rate if update.format else current
        logprobs = self.logprobs if update.logprobs is None else update.logprobs
        return replace(self, **fields, rate=rate, logprobs=logprobs, events=ItemEvents())

    def body(self) -> TranscriptionRequest:
        """Return the settings as a transcription request. Raises `InvalidRequest` without a
        model."""
        if self.model is None:
            raise no_model()
        fields = {"model": self.model, "language": self.language, "prompt": self.prompt}
        include = {"include[]": ("logprobs",) if self.logprobs else ()}
        return build(fields | include, TranscriptionRequest)

    def shown(self) -> Audio:
        """Return the settings in the client's format."""
        speech = Transcribing(self.model, self.language, self.prompt)
        turns = None
        if (detection := self.turn_detection) is not None:
            turns = ServerVad(
                detection.threshold, detection.prefix_padding_ms, detection.silence_duration_ms
            )
        return Audio(Input(Format(self.rate), speech, turns))


def no_model() -> InvalidRequest:
    """Error for audio before a model was chosen."""
    return invalid(
        "model",
        "No model is named. Send its name with session.update first.",
        "missing_required_parameter",
    )
