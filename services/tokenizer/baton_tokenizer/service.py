"""The tokenizer service: answers gateways, with decoding before encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from msgspec import json, structs

from baton import __version__
from baton.checkpoint.hub import resolve, served_name
from baton.errors import InvalidRequest, ServerFault, WireError
from baton.logs import logger
from baton.net.handshake import incarnation
from baton.net.sockets import Received
from baton.net.topology import TOKENIZE
from baton.output_parsing import select
from baton.output_parsing.selection import NONE
from baton.process import gc_tuning, rpc_server, standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.rpc_server import Deferred
from baton.protocol import (
    Decode,
    DecodedText,
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodePair,
    EncodeText,
    Envelope,
    Hello,
    Message,
    TokenizerInfo,
    Vocabulary,
    VocabularyBytes,
)
from baton.protocol.token_columns import pack, unpack
from baton.telemetry import span
from baton_tokenizer.chat_template import ChatTemplates, CompiledTemplate, Template
from baton_tokenizer.config import Config
from baton_tokenizer.decode_states import DecodeStates
from baton_tokenizer.detokenize import Alphabet, decode
from baton_tokenizer.encode import Encoder, Ids
from baton_tokenizer.pair_encoder import PairEncoder
from baton_tokenizer.sampling_defaults import sampling_defaults
from baton_tokenizer.template_sandbox import SandboxedTemplate
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary

_SHORT = 32_768
"""Number of characters or bytes that are encoded within a few milliseconds."""

_TAIL = 64
"""Number of characters at the end of a conversation that are included in the reply: more than any
opener of thinking has."""

Request = EncodeChat | EncodePair | EncodeText | Detokenize | Vocabulary

log = logger(__name__)


class RequestHandler:
    """Answers stateless requests; every answer is a function of the request."""

    def __init__(
        self,
        vocab: TokenizerVocabulary,
        max_tokens: int,
        model: str,
        compiler: Callable[[str, Mapping[str, str]], Template] = CompiledTemplate,
    ) -> None:
        """
        Args:
            model: name under which the vocabulary is served.
            compiler: compiles a chat template; by default it is rendered in this process.
        """
        self._vocab, self._model = vocab, model
        self._chat = ChatTemplates(
            vocab.templates, vocab.named, vocab.literal, vocab.placeholders, compiler
        )
        self._encoder = Encoder(vocab, max_tokens)
        self._pairs = PairEncoder(vocab, self._encoder)
        self._alphabet = Alphabet(vocab)

    def close(self) -> None:
        """Close the chat templates."""
        self._chat.close()

    @property
    def alphabet(self) -> Alphabet:
        """Token texts for decoding."""
        return self._alphabet

    def answer(self, request: Request, envelope: Envelope) -> Message:
        """Answer a request. Raises `InvalidRequest`."""
        match request:
            case Vocabulary():
                return VocabularyBytes(request.id, self._vocab.pieces)
            case Detokenize():
                return Detokenized(request.id, self._detokenize(request))
            case _:
                with span("encode", envelope.trace) as current:
                    encoding, tail = self._encode(request)
                    current.set_attribute("tokens", len(encoding.ids))
                return Encoded(
                    request.id, pack(encoding.ids), encoding.truncated, encoding.second, tail
                )

    def _encode(self, request: EncodeChat | EncodePair | EncodeText) -> tuple[Ids, str]:
        """The ids, and the end of a conversation's text."""
        if request.model not in ("", self._model):
            raise ServerFault(f"This tokenizer serves {self._model}, not {request.model[:200]}.")
        if isinstance(request, EncodeChat):
            rendered = self._chat.render(request, self._encoder.reach(request.limit))
            return self._encoder.chat(rendered, request.limit), rendered.text[-_TAIL:]
        if isinstance(request, EncodePair):
            return self._pairs.encode(request), ""
        text, limit, keep = request.text, request.limit, request.keep
        add_special = request.add_special
        return self._encoder.text(text, add_special=add_special, limit=limit, keep=keep), ""

    def _detokenize(self, request: Detokenize) -> str:
        try:
            tokens = unpack(request.tokens)
        except ValueError as error:
            raise InvalidRequest("The token column is cut off.", param="tokens") from error
        return decode(self._alphabet, tokens, skip_special=request.skip_special)


def is_long(request: Request) -> bool:
    """True if the reply takes long enough to delay running streams."""
    match request:
        case EncodeChat():
            size = len(request.messages) + len(request.tools) + len(request.kwargs)
        case EncodePair():
            size = len(request.query) + len(request.document)
        case EncodeText():
            size = len(request.text)
        case Detokenize():
            size = len(request.tokens)
        case Vocabulary():
            size = 0
    return size > _SHORT


class Tokenizer:
    """The tokenizer's replies. Decoding is answered immediately, because every running stream waits
    for it. Short requests alternate with it; long ones are answered by a thread, one after the
    other (the encoder releases the interpreter lock)."""

    def __init__(self, handler: RequestHandler, max_decode_states: int) -> None:
        self._handler = handler
        self._sequences = DecodeStates(handler.alphabet, max_decode_states)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    @property
    def idle(self) -> bool:
        """True if no sequence is open."""
        return not self._sequences

    def handle(self, received: Received) -> Message | Deferred:
        """Decode immediately, and defer everything else."""
        peer, envelope, message = received
        match message:
            case Decode():
                return self._decode(peer, message)
            case EncodeChat() | EncodePair() | EncodeText() | Detokenize() | Vocabulary():
                submit = self._thread.submit if is_long(message) else None
                return Deferred(partial(self._handler.answer, message, envelope), submit)
            case _:
                raise AssertionError(f"{type(message).__name__} is no request of this link")

    def forget(self, peer: bytes) -> None:
        """Drop the decode states of a gateway."""
        self._sequences.drop(peer)

    def close(self) -> None:
        """Drop pending requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _decode(self, peer: bytes, message: Decode) -> DecodedText:
        """Decode; an invalid message is answered as if its states were lost."""
        try:
            return self._sequences.decode(peer, message)
        except WireError as error:
            log.warning("%s", error.message)
        except Exception:
            log.exception("decoding failed")
        return DecodedText(handles=b"", next=b"", texts=(), unknown=message.handles)


def _described(vocab: TokenizerVocabulary, config: Config) -> TokenizerInfo:
    """Properties of the vocabulary and the formats of outputs. Raises `SettingsError` for an
    unknown format."""
    chosen = select(
        *(None if name == "auto" else name for name in _parsers(config)),
        chat_template="\n".join(vocab.templates.values()),
        response_template=vocab.response_template,
    )
    log.info("%s", chosen.reason)
    defaults = sampling_defaults(
        vocab.generation, config.generation_config, config.override_generation_config
    )
    if defaults:
        log.info("requests that do not say otherwise are sampled with %s", defaults)
    tools, reasoning = chosen.tool_format, chosen.reasoning_format
    return structs.replace(
        vocab.info(served_name(config)),
        tool_call_parser=tools.name if tools else NONE,
        reasoning_parser=reasoning.name if reasoning else NONE,
        response_template=json.encode(vocab.response_template) if vocab.response_template else b"",
        sampling_defaults=defaults,
    )


def _parsers(config: Config) -> tuple[str, str]:
    return config.tool_call_parser, config.reasoning_parser


def serve(config: Config, life: Lifecycle) -> int:
    """Load the vocabulary and serve until the end. Returns the exit code."""
    vocab = load(resolve(config), config.chat_template)
    me = default_name("tokenizer")
    info = _described(vocab, config)
    hello = Hello("tokenizer", me, incarnation(), __version__, tokenizer=info)
    handler = RequestHandler(vocab, config.max_encode_tokens, info.model, SandboxedTemplate)
    with closing(handler):
        gc_tuning.settle()
        standby.wait()
        log.info("serving %d tokens of %s", info.vocab_size, info.model)
        rpc_server.serve(
            Tokenizer(handler, config.max_decode_states),
            hello,
            TOKENIZE,
            config,
            life,
            bind=config.bind,
            advertise=config.advertise,
            max_queued_requests=config.max_queued_requests,
        )
    return 0
