"""Speech to text: special tokens of prompts, and recordings in chunks."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from baton.protocol.base import RpcReply, RpcRequest
from baton.protocol.media import MediaItem, PreparedMedia


class SpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="whisper"):
    """Special tokens of Whisper models (Radford et al. 2022, arXiv:2212.04356) for prompts and
    outputs. -1: the vocabulary has no such token."""

    start: int
    """`<|startoftranscript|>`: in every prompt."""
    end: int
    """Ends a transcript; lower ids are text."""
    no_timestamps: int
    """`<|notimestamps|>`: ends a prompt for text only. Higher ids are timestamps, 20 ms apart."""
    languages: dict[str, int] = {}
    """Token by ISO 639 code; empty for an English-only model, which has no task token either."""
    transcribe: int = -1
    translate: int = -1
    """Requests English text."""
    previous: int = -1
    """Begins the text before the recording."""
    no_speech: int = -1
    """Its probability after `start` is that of no speech."""
    suppressed: tuple[int, ...] = ()
    """Ids that are never sampled."""
    suppressed_first: tuple[int, ...] = ()
    """Ids that are not sampled as the first token."""
    max_first_timestamp: int = -1
    """The first timestamp is at most this many steps after 0; -1: no limit."""


class ChatSpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """How transcripts are requested from a language model with audio input: by a conversation that
    contains the recording."""

    languages: dict[str, str] = {}
    """Name of each language in its answers, by ISO 639 code; empty if a language cannot be
    requested."""
    opening: str = ""
    """Beginning of an answer in a given language: "{language}" is replaced by its name."""
    marker: str = ""
    """Text of an answer up to this marker is not spoken; empty if all of it is."""
    request: str = ""
    """User text after the recording, unless the client sends its own; empty if a client's text goes
    into the system message."""


class StreamedSpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="streamed"):
    """Prompt of a streaming speech model: an audio embedding is added to each token, and the first
    tokens correspond to silence."""

    start: int
    pad: int
    """Token of a part in which no word ends."""
    num_pads: int
    """Number of padding tokens after `start` in every prompt."""
    delay: int = 0
    """Delay of an answer after the audio in tokens; included in `num_pads`."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of every prompt."""
        return (self.start, *[self.pad] * self.num_pads)


AnySpeechInfo: TypeAlias = SpeechInfo | ChatSpeechInfo | StreamedSpeechInfo
"""Prompt information of a speech-to-text model."""


class PrepareSpeech(RpcRequest, tag="prepare_speech", frozen=True):
    """Split a recording into chunks, and convert each to a tensor. gateway -> mm-preprocess."""

    item: MediaItem
    first: int = 0
    """Number of the first requested chunk: the chunks of a reply fit into a message."""
    tenant: str = ""
    """Tenant of the request; tenants take turns."""


class SpeechChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a recording."""

    start: float
    """Seconds from the beginning of the recording."""
    media: PreparedMedia


class PreparedSpeech(RpcReply, tag="prepared_speech", frozen=True):
    """Answer to `PrepareSpeech`. mm-preprocess -> gateway."""

    chunks: tuple[SpeechChunk, ...]
    """Chunks from the first requested one on, at least one."""
    num_chunks: int
    """Number of chunks of the recording."""
    seconds: float
    """Length of the recording."""
    settled: float = 0.0
    """Lower bound, in seconds, of the end of the last chunk, whatever audio follows."""
