"""Messages between gateway and tokenizer: text to token ids and back."""

from __future__ import annotations

import msgspec

from baton.protocol.base import Message, RpcReply, RpcRequest


class EncodeChat(RpcRequest, tag="encode_chat", frozen=True):
    """Render the model's chat template and encode the result. gateway -> tokenizer."""

    messages: bytes
    """JSON array of OpenAI messages whose content is a string, null, or a list of text parts."""
    tools: bytes = b""
    """JSON array of OpenAI tools, or empty."""
    kwargs: bytes = b""
    """JSON object of extra template variables, or empty."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    limit: int = 0
    """Maximum useful number of tokens; encoding may stop soon after. 0 means no limit."""
    model: str = ""
    """Model whose vocabulary is used; tokenizers of other models refuse. Empty means any."""


class EncodeText(RpcRequest, tag="encode_text", frozen=True):
    """Encode plain text. gateway -> tokenizer."""

    text: str
    add_special: bool = True
    """Let the model's post-processor add its beginning-of-sequence token."""
    limit: int = 0
    """As `EncodeChat.limit`."""
    model: str = ""
    """As `EncodeChat.model`."""
    keep: int = 0
    """Most tokens to encode, with those of the post-processor: the end of the text is cut off. 0:
    all."""


class EncodePair(RpcRequest, tag="encode_pair", frozen=True):
    """Encode a query and a document into one sequence, joined by the model's pair template, else by
    its post-processor. Text such as "</s>" stays text. gateway -> tokenizer."""

    query: bytes
    """JSON: a string, or an array of OpenAI content parts of text and media."""
    document: bytes
    """As `query`."""
    limit: int = 0
    """As `EncodeChat.limit`."""
    model: str = ""
    """As `EncodeChat.model`."""
    keep: int = 0
    """As `EncodeText.keep`; the longer of the two texts is cut first."""


class Encoded(RpcReply, tag="encoded", frozen=True):
    """Answer to `EncodeChat`, `EncodePair` and `EncodeText`. tokenizer -> gateway."""

    tokens: bytes
    """int32: token ids"""
    truncated: bool = False
    """The text was longer than `limit`; `tokens` holds more than `limit` ids, not all of them."""
    second: int = 0
    """Index of the first token of the second text, if the model distinguishes the two; else 0."""
    tail: str = ""
    """End of a rendered conversation, at most 64 characters: it shows whether the model is to
    continue its thinking."""


class Detokenize(RpcRequest, tag="detokenize", frozen=True):
    """Decode a complete list of ids, without state. gateway -> tokenizer."""

    tokens: bytes
    """int32: token ids"""
    skip_special: bool = False


class Detokenized(RpcReply, tag="detokenized", frozen=True):
    """Answer to `Detokenize`. tokenizer -> gateway."""

    text: str


class DecodeOpen(msgspec.Struct, frozen=True, array_like=True):
    """Start incremental decoding of one sequence, from its first token or after `log`.

    The state is a pure function of these fields and the tokens, so any tokenizer can take over
    given the log so far. The text of `log` is not sent again.
    """

    handle: int
    """uint32, unique among the gateway's live sequences."""
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    prompt_tail: bytes = b""
    """int32: last prompt ids, needed to decide on the space before the first word."""
    log: bytes = b""
    """int32: output tokens whose text the gateway already has."""


class Decode(Message, tag="decode", frozen=True):
    """New tokens of several sequences. gateway -> tokenizer, for each `Tokens`."""

    handles: bytes
    """uint32 per row: the gateway's handle of the sequence"""
    first: bytes
    """uint32 per row: index in the output of the row's first token"""
    counts: bytes
    """uint8 per row: number of tokens"""
    tokens: bytes
    """int32, concatenated over rows: token ids"""
    last: bytes
    """uint8 per row: 1 if no more tokens follow: flush held-back text and drop the state"""
    open: tuple[DecodeOpen, ...] = ()
    """Sequences to open before the rows are decoded."""
    close: bytes = b""
    """uint32: handles whose state to drop without a last row"""


class DecodedText(Message, tag="decoded_text", frozen=True):
    """Answer to `Decode`: new text, row by row. tokenizer -> gateway."""

    handles: bytes
    """uint32 per row: the gateway's handle of the sequence"""
    next: bytes
    """uint32 per row: number of output tokens consumed so far"""
    texts: tuple[str, ...]
    """New text per row. It is final: it holds no part of a stop string and no half character."""
    stopped: dict[int, str] = msgspec.field(default_factory=dict)
    """handle -> the stop string that ended it; its state is dropped"""
    unknown: bytes = b""
    """uint32: handles without state, or whose `first` left a gap; the gateway opens them again"""
    ends: tuple[tuple[int, ...], ...] = ()
    """Per row, for each consumed token: total number of characters emitted after it."""


class Vocabulary(RpcRequest, tag="vocabulary", frozen=True):
    """Request the bytes of every token. gateway -> tokenizer, for log-probabilities."""


class VocabularyBytes(RpcReply, tag="vocabulary_bytes", frozen=True):
    """Answer to `Vocabulary`: entry i is token i as raw bytes. tokenizer -> gateway."""

    pieces: tuple[bytes, ...]


class RequestError(RpcReply, tag="request_error", frozen=True):
    """Error answer to any request: a `BatonError`. tokenizer or mm-preprocess -> gateway."""

    code: str | None
    message: str
    param: str | None = None
    status: int = 400
