"""The tokenizer service: answers gateways, with decoding before encoding."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from baton import __version__
from baton.checkpoint.hub import resolve, served_name
from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable, WireError
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import bind_address, directory
from baton.net.handshake import QUIET_SECONDS, Roster, incarnation
from baton.net.sockets import Received, Server, wait
from baton.net.topology import TOKENIZE
from baton.process import gc_tuning, standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.watchdog import pulse
from baton.protocol import (
    Beat,
    Decode,
    DecodedText,
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodeText,
    Envelope,
    Hello,
    Message,
    RequestError,
    Vocabulary,
    VocabularyBytes,
)
from baton.protocol.token_columns import pack, unpack
from baton.telemetry import span
from baton_tokenizer.chat_template import ChatTemplates
from baton_tokenizer.config import Config
from baton_tokenizer.decode_states import DecodeStates
from baton_tokenizer.detokenize import Alphabet, decode
from baton_tokenizer.encode import Encoder, Ids
from baton_tokenizer.vocabulary.load import load
from baton_tokenizer.vocabulary.vocabulary import TokenizerVocabulary

_IDLE_SECONDS = 0.05
"""Maximum wait of an idle loop; bounds the delay in noticing lost gateways."""
_LONG_SECONDS = 0.001
"""Maximum wait of the loop while the worker thread encodes."""
_SHORT = 32_768
"""Number of characters or bytes that are encoded within a few milliseconds."""

Request = EncodeChat | EncodeText | Detokenize | Vocabulary

log = logger(__name__)


class RequestHandler:
    """Answers stateless requests; every answer is a function of the request."""

    def __init__(self, vocab: TokenizerVocabulary, max_tokens: int) -> None:
        self._vocab = vocab
        self._chat = ChatTemplates(vocab.templates, vocab.named, vocab.literal)
        self._encoder = Encoder(vocab, max_tokens)
        self._alphabet = Alphabet(vocab)

    @property
    def alphabet(self) -> Alphabet:
        """Token texts for decoding."""
        return self._alphabet

    def answer(self, request: Request, envelope: Envelope) -> Message:
        """Answer a request; `RequestError` on failure."""
        try:
            return self._answer(request, envelope)
        except BatonError as error:
            return refusal(request.id, error)
        except Exception:
            log.exception("request %d (%s) failed", request.id, type(request).__name__)
            return refusal(request.id, ServerFault("The tokenizer failed on this request."))

    def _answer(self, request: Request, envelope: Envelope) -> Message:
        match request:
            case Vocabulary():
                return VocabularyBytes(request.id, self._vocab.pieces)
            case Detokenize():
                return Detokenized(request.id, self._detokenize(request))
            case _:
                with span("encode", envelope.trace) as current:
                    found = self._encode(request)
                    current.set_attribute("tokens", len(found.ids))
                return Encoded(request.id, pack(found.ids), found.truncated, found.second)

    def _encode(self, request: EncodeChat | EncodeText) -> Ids:
        if isinstance(request, EncodeChat):
            longest = self._encoder.reach(request.limit)
            return self._encoder.chat(self._chat.render(request, longest), request.limit)
        if request.pair is not None:
            return self._encoder.pair(
                request.text,
                request.pair,
                allow_special=request.allow_special,
                limit=request.limit,
            )
        return self._encoder.text(
            request.text,
            add_special=request.add_special,
            allow_special=request.allow_special,
            limit=request.limit,
        )

    def _detokenize(self, request: Detokenize) -> str:
        try:
            tokens = unpack(request.tokens)
        except ValueError as error:
            raise InvalidRequest("The token column is cut off.", param="tokens") from error
        return decode(self._alphabet, tokens, skip_special=request.skip_special)


def refusal(request: int, error: BatonError) -> RequestError:
    """Convert an error to its message."""
    return RequestError(request, error.code, error.message, error.param, error.status)


class Waiting(NamedTuple):
    """A pending request."""

    peer: bytes
    envelope: Envelope
    request: Request


def is_long(request: Request) -> bool:
    """True if answering takes long enough to delay running streams."""
    match request:
        case EncodeChat():
            size = len(request.messages) + len(request.tools) + len(request.kwargs)
        case EncodeText():
            size = len(request.text) + len(request.pair or "")
        case Detokenize():
            size = len(request.tokens)
        case Vocabulary():
            size = 0
    return size > _SHORT


class Tokenizer:
    """The service without its process: receives, decodes, encodes, watches its gateways.

    Decoding is answered as it arrives, because every running stream waits for it. Other requests
    queue, at most `max_pending` of them: one short request is answered per turn; long ones are
    answered by a thread, one after the other (the encoder runs outside of Python's lock).
    """

    def __init__(self, desk: RequestHandler, hello: Hello, config: Config, server: Server) -> None:
        self._desk = desk
        self._server = server
        self._max_pending = config.max_queued_requests
        self._roster = Roster(hello)
        self._sequences = DecodeStates(desk.alphabet, config.max_decode_states)
        self._short: deque[Waiting] = deque()
        self._long: deque[tuple[Waiting, Future[Message]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    @property
    def idle(self) -> bool:
        """True if no sequence is open and no request is pending."""
        return not self._sequences and not self._short and not self._long

    def turn(self, now: float) -> None:
        """Receive what has arrived, answer what is due, forget lost gateways."""
        for received in self._server.drain():
            self._receive(received, now)
        if self._short:
            waiting = self._short.popleft()
            self._reply(waiting, self._desk.answer(waiting.request, waiting.envelope))
        while self._long and self._long[0][1].done():
            waiting, answer = self._long.popleft()
            self._reply(waiting, answer.result())
        for lost in self._roster.expire(now, QUIET_SECONDS):
            log.warning("gateway %s is gone", lost.hello.name)
            self._sequences.drop(lost.identity)

    def step(self) -> None:
        """Wait until there is something to do, and do it."""
        pulse.beat()
        seconds = 0.0 if self._short else _LONG_SECONDS if self._long else _IDLE_SECONDS
        wait((self._server,), seconds)
        self.turn(time.monotonic())

    def close(self) -> None:
        """Drop pending requests."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _reply(self, waiting: Waiting, answer: Message) -> None:
        self._server.send(waiting.peer, answer, waiting.envelope)

    def _receive(self, received: Received, now: float) -> None:
        peer, envelope, message = received
        match message:
            case Decode():
                self._server.send(peer, self._decode(peer, message), envelope)
            case EncodeChat() | EncodeText() | Detokenize() | Vocabulary():
                self._queue(Waiting(peer, envelope, message))
            case Beat():
                self._server.send(peer, self._roster.beat(message, now))
            case Hello():
                self._greet(peer, message, now)

    def _decode(self, peer: bytes, message: Decode) -> DecodedText:
        """Decode; a message that cannot be decoded is answered as if its states were lost."""
        try:
            return self._sequences.decode(peer, message)
        except WireError as error:
            log.warning("%s", error.message)
        except Exception:
            log.exception("decoding failed")
        return DecodedText(handles=b"", next=b"", texts=(), unknown=message.handles)

    def _queue(self, waiting: Waiting) -> None:
        if len(self._short) + len(self._long) >= self._max_pending:
            error = Unavailable("Too many texts wait to be encoded; try again shortly.")
            self._reply(waiting, refusal(waiting.request.id, error))
        elif is_long(waiting.request):
            job = self._thread.submit(self._desk.answer, waiting.request, waiting.envelope)
            self._long.append((waiting, job))
        else:
            self._short.append(waiting)

    def _greet(self, peer: bytes, hello: Hello, now: float) -> None:
        try:
            replaced = self._roster.greet(peer, hello, now)
        except WireError as error:
            log.error("%s", error.message)
            return
        if replaced is not None:
            self._sequences.drop(replaced.identity)
        self._server.send(peer, self._roster.me)


def serve(config: Config, life: Lifecycle) -> int:
    """Load the vocabulary and serve until the end. Returns the exit code."""
    vocab = load(resolve(config), config.chat_template)
    me = default_name("tokenizer")
    info = vocab.info(served_name(config))
    hello = Hello("tokenizer", me, incarnation(), __version__, tokenizer=info)
    desk = RequestHandler(vocab, config.max_encode_tokens)
    gc_tuning.settle()
    standby.wait()
    address = bind_address(config, TOKENIZE, config.bind)
    found = directory(config)
    trusted, keys = config.trusted_network, own_keys(config)
    with Server(TOKENIZE, address, trusted_network=trusted, keys=keys) as server:
        found.announce(TOKENIZE, me, config.advertise or address)
        log.info("serving %d tokens of %s at %s", info.vocab_size, info.model, address)
        tokenizer = Tokenizer(desk, hello, config, server)
        while not life.draining:
            tokenizer.step()
        found.close()  # new requests go to other tokenizers
        while not life.over(tokenizer.idle):
            tokenizer.step()
        tokenizer.close()
    return 0
