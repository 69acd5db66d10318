"""Gateway to tokenizer: text to ids, ids to text."""

from __future__ import annotations

import msgspec

from baton.protocol.base import Message


class EncodeChat(Message, tag="encode_chat", frozen=True):
    """Render the model's chat template and encode the result."""

    id: int
    """uint32, chosen by the gateway; the answer carries it."""
    messages: bytes
    """JSON array of OpenAI messages whose content is a string, null, or a list of text parts."""
    tools: bytes = b""
    """JSON array of OpenAI tools, or empty."""
    kwargs: bytes = b""
    """JSON object of extra template variables, or empty."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    limit: int = 0
    """Longest useful result in tokens; encoding may stop soon after. 0 means no limit."""


class EncodeText(Message, tag="encode_text", frozen=True):
    """Encode plain text. Text that looks like a special token stays text unless allowed."""

    id: int
    text: str
    add_special: bool = True
    """Let the model's post-processor add its beginning-of-sequence token."""
    allow_special: bool = True
    """Text such as "</s>" becomes that token."""
    limit: int = 0
    pair: str | None = None
    """A second text, encoded behind the first one as one sequence."""


class Encoded(Message, tag="encoded", frozen=True):
    """Answer to EncodeChat and EncodeText."""

    id: int
    tokens: bytes
    """int32"""
    truncated: bool = False
    """The text was longer than `limit`; `tokens` holds more than `limit` ids, not all of them."""
    second: int = 0
    """Index of the first token of the second text, where the model tells the two apart."""


class Detokenize(Message, tag="detokenize", frozen=True):
    """Decode whole id lists, with no state kept."""

    id: int
    tokens: bytes
    """int32"""
    skip_special: bool = False


class Detokenized(Message, tag="detokenized", frozen=True):
    """Answer to Detokenize."""

    id: int
    text: str


class DecodeOpen(msgspec.Struct, frozen=True, array_like=True):
    """Begin to decode one sequence, from the start or after `log`.

    The state is a pure function of (these fields, tokens): any tokenizer can take over by
    being given the log so far. Text of `log` is not sent again.
    """

    handle: int
    """uint32, unique among the gateway's live sequences."""
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    prompt_tail: bytes = b""
    """int32: last prompt ids, so that the first word keeps or drops its space rightly."""
    log: bytes = b""
    """int32: tokens whose text the gateway already has."""


class Decode(Message, tag="decode", frozen=True):
    """Tokens of one step for many sequences. gateway -> tokenizer, columnar."""

    handles: bytes
    """uint32 per row"""
    first: bytes
    """uint32 per row: index of the row's first token in its log"""
    counts: bytes
    """uint8 per row"""
    tokens: bytes
    """int32, concatenated"""
    last: bytes
    """uint8 per row: 1 when no more tokens follow: held-back text is flushed, the state dropped"""
    open: tuple[DecodeOpen, ...] = ()
    close: bytes = b""
    """uint32 handles to drop without a last row"""


class DecodedText(Message, tag="decoded_text", frozen=True):
    """Text of one Decode, row by row. tokenizer -> gateway."""

    handles: bytes
    """uint32 per row"""
    next: bytes
    """uint32 per row: tokens of the log consumed so far"""
    texts: tuple[str, ...]
    """New text of each row, final: never part of a stop string, never half a character."""
    stopped: dict[int, str] = msgspec.field(default_factory=dict)
    """handle -> the stop string that ended it; its state is dropped"""
    unknown: bytes = b""
    """uint32 handles without state here, or whose `first` left a gap: open them again"""
    ends: tuple[tuple[int, ...], ...] = ()
    """Per row, for each consumed token, the total number of characters emitted after it."""


class Vocabulary(Message, tag="vocabulary", frozen=True):
    """Ask for the bytes of every token (for log-probabilities)."""

    id: int


class VocabularyBytes(Message, tag="vocabulary_bytes", frozen=True):
    """Answer to Vocabulary: entry i is token i as raw bytes."""

    id: int
    pieces: tuple[bytes, ...]


class RequestError(Message, tag="request_error", frozen=True):
    """The request with this id cannot be served: a `BatonError` on the wire."""

    id: int
    code: str | None
    message: str
    param: str | None = None
    status: int = 400
