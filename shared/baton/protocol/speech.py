"""Speech to text: the special tokens of a model's prompts, and recordings in chunks."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from baton.protocol.base import RpcReply, RpcRequest
from baton.protocol.media import MediaItem, PreparedMedia


class SpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="whisper"):
    """Special tokens by which a model of Whisper's kind (Radford et al. 2022, arXiv:2212.04356) is
    asked, and what it may answer. -1: the vocabulary has no such token."""

    start: int
    """`<|startoftranscript|>`: in every prompt."""
    end: int
    """Ends a transcript; the ids below it are those of text."""
    no_timestamps: int
    """`<|notimestamps|>`: ends a prompt for text alone. The ids above it are timestamps, 20 ms
    apart."""
    languages: dict[str, int] = {}
    """By ISO 639 code; empty for a model of English alone, which is not told a task either."""
    transcribe: int = -1
    translate: int = -1
    """Asks for English text."""
    previous: int = -1
    """Begins the text before the recording."""
    no_speech: int = -1
    """As probable after `start` as the absence of speech is."""
    suppressed: tuple[int, ...] = ()
    """Never written."""
    suppressed_first: tuple[int, ...] = ()
    """Not written as the first token."""
    max_first_timestamp: int = -1
    """The first timestamp is at most so many steps after 0; -1: at any."""


class ChatSpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="chat"):
    """How a language model with audio input is asked for a transcript: by a conversation with the
    recording, through its chat template."""

    languages: dict[str, str] = {}
    """Name of each language in its answers, by ISO 639 code; empty if it cannot be told one."""
    opening: str = ""
    """How the answer begins in a given language: "{language}" stands for the name of it."""
    marker: str = ""
    """What comes before this in an answer is not spoken; empty if all is."""
    request: str = ""
    """What the user says behind the recording, unless the client says something else; empty if a
    client's text is what the system says."""


class StreamedSpeechInfo(msgspec.Struct, frozen=True, array_like=True, tag="streamed"):
    """How a model that writes while it hears is asked: each of its tokens goes along with a part of
    the recording, and the first of them stand for silence."""

    start: int
    pad: int
    """Stands for a part in which no word ends."""
    num_pads: int
    """Behind `start` in every prompt."""
    delay: int = 0
    """Tokens by which an answer is behind what is heard; part of `num_pads`."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Ids of every prompt."""
        return (self.start, *[self.pad] * self.num_pads)


AnySpeechInfo: TypeAlias = SpeechInfo | ChatSpeechInfo | StreamedSpeechInfo
"""How a speech-to-text model is asked."""


class PrepareSpeech(RpcRequest, tag="prepare_speech", frozen=True):
    """Cut a recording into chunks, and convert each to a tensor. gateway -> mm-preprocess."""

    item: MediaItem
    first: int = 0
    """Number of the first chunk that is wanted: those of one answer fit into a message."""
    tenant: str = ""
    """Whose it is; tenants take turns."""


class SpeechChunk(msgspec.Struct, frozen=True, array_like=True):
    """A part of a recording."""

    start: float
    """Seconds from the beginning of the recording."""
    media: PreparedMedia


class PreparedSpeech(RpcReply, tag="prepared_speech", frozen=True):
    """Answer to `PrepareSpeech`. mm-preprocess -> gateway."""

    chunks: tuple[SpeechChunk, ...]
    """From the first that is wanted on, at least one."""
    num_chunks: int
    """Those of the whole recording."""
    seconds: float
    """Its length."""
    settled: float = 0.0
    """Seconds up to which the last chunk goes at least, whatever follows."""
