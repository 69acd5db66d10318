"""Responses with transcripts and translations, and the events of a stream."""

from __future__ import annotations

from typing import Literal

import msgspec


class DurationUsage(msgspec.Struct, tag_field="type", tag="duration"):
    """`usage` by duration."""

    seconds: int
    """Rounded up."""


class InputDetails(msgspec.Struct):
    """`usage.input_token_details`"""

    audio_tokens: int
    """Encoder states of the recording."""
    text_tokens: int


class TokenUsage(msgspec.Struct, tag_field="type", tag="tokens"):
    """`usage` by tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputDetails


class TokenProbability(msgspec.Struct):
    """An entry of `logprobs`."""

    token: str
    bytes: list[int]
    logprob: float


class Transcription(msgspec.Struct):
    """A transcript as "json"."""

    text: str
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET
    usage: DurationUsage | msgspec.UnsetType = msgspec.UNSET


class Segment(msgspec.Struct):
    """One entry of `segments`."""

    id: int
    seek: int
    """Start of its chunk of the recording, in units of 10 ms."""
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    """Mean of the log-probabilities of `tokens`."""
    compression_ratio: float
    """Bytes of the text divided by those of its zlib compression."""
    no_speech_prob: float


class Word(msgspec.Struct):
    """One entry of `words`."""

    word: str
    """With punctuation, without the space before it."""
    start: float
    end: float


class VerboseTranscription(msgspec.Struct):
    """A transcript as "verbose_json"."""

    task: Literal["transcribe", "translate"]
    language: str
    """English name of the spoken language."""
    duration: float
    text: str
    usage: DurationUsage
    segments: list[Segment] | msgspec.UnsetType = msgspec.UNSET
    words: list[Word] | msgspec.UnsetType = msgspec.UNSET


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    """An event with the next part of the text."""

    delta: str
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


class TextDone(msgspec.Struct, tag_field="type", tag="transcript.text.done"):
    """The last event, with the complete text."""

    text: str
    usage: TokenUsage
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


SpeechEvent = TextDelta | TextDone
