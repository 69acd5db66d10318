"""The media preprocessing service: reports supported modalities to gateways and answers `Prepare`.

Child processes decode the files; this process never waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing

from baton import __version__
from baton.checkpoint.hub import resolve, served_name
from baton.errors import BatonError, InvalidRequest, ServerFault, Unavailable, WireError
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import bind_address, directory
from baton.net.handshake import QUIET_SECONDS, Roster, incarnation
from baton.net.sockets import Received, Server, wait
from baton.net.topology import MEDIA
from baton.process import standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.watchdog import pulse
from baton.protocol import Beat, Hello, MediaInfo, Message, Prepare, Prepared, RequestError
from baton.telemetry import span
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.model_info import Images, Model, read_model
from baton_mm_preprocess.sandbox.pool import DecodePool
from baton_mm_preprocess.sandbox.process import Outcome, Problem, Ready, Setup

_IDLE_SECONDS = 0.05
"""Maximum wait of an idle loop."""
_BUSY_SECONDS = 0.001
"""Maximum wait while media are being processed."""

log = logger(__name__)


def prepare(model: Model, request: Prepare, look: Callable[[str], Outcome]) -> Prepared:
    """Tensors of a request; `look` converts a URL. Raises `InvalidRequest` for the first invalid
    part, and any error of `look`."""
    found = list[Ready]()
    for item in request.items:
        model.check(item)
        outcome = look(item.url)
        if isinstance(outcome, Problem):
            raise InvalidRequest(outcome.message, code=outcome.code, param=item.param)
        found.append(outcome)
    return Prepared(
        request.id,
        placeholders=(model.images.placeholders if model.images else 0,) * len(found),
        hashes=tuple(ready.digest for ready in found),
        tensors=tuple(ready.tensor for ready in found),
    )


class Preprocessor:
    """The service without its process."""

    def __init__(self, model: Model, hello: Hello, server: Server, config: Config) -> None:
        self._model, self._server, self._config = model, server, config
        self._roster = Roster(hello)
        self._children: DecodePool | None = None
        self._pending: dict[Future[Prepared], tuple[Received, Prepare]] = {}
        if model.images is not None:
            setup = setup_of(model.images, config)
            self._children = DecodePool(setup, config.decode_processes, config.media_seconds)
            self._children.start()

    @property
    def idle(self) -> bool:
        """True if no request is pending."""
        return not self._pending

    def turn(self, now: float) -> None:
        """Answer what has arrived and what is done, and forget lost gateways."""
        for received in self._server.drain():
            reply = self._reply(received, now)
            if reply is not None:
                self._server.send(received.peer, reply, received.envelope)
        for future in [future for future in self._pending if future.done()]:
            received, request = self._pending.pop(future)
            self._server.send(
                received.peer, self._answer(request, future.result), received.envelope
            )
        for lost in self._roster.expire(now, QUIET_SECONDS):
            log.warning("gateway %s is gone", lost.hello.name)

    def step(self) -> None:
        """Wait until there is something to do, and do it."""
        pulse.beat()
        wait((self._server,), _BUSY_SECONDS if self._pending else _IDLE_SECONDS)
        self.turn(time.monotonic())

    def close(self) -> None:
        """Stop the child processes."""
        if self._children is not None:
            self._children.close()

    def _reply(self, received: Received, now: float) -> Message | None:
        match received.message:
            case Prepare() as request:
                return self._begin(received, request)
            case Beat() as beat:
                return self._roster.beat(beat, now)
            case Hello() as hello:
                return self._greet(received.peer, hello, now)
            case _:
                return None

    def _begin(self, received: Received, request: Prepare) -> Message | None:
        """Answer a request at once if it needs no file, else start processing it."""
        try:
            for item in request.items:
                self._model.check(item)
            self._check_room(request)
        except BatonError as error:
            return refusal(request, error)
        children = self._children
        if children is None or not request.items:
            return Prepared(request.id, (), ())
        future = children.submit(lambda: self._traced(received, request, children))
        self._pending[future] = (received, request)
        return None

    def _check_room(self, request: Prepare) -> None:
        most = self._config.max_items
        if len(request.items) > most:
            raise InvalidRequest(
                f"{len(request.items)} media parts are too many: this server takes {most}.",
                code="array_above_max_length",
                param=request.items[most].param,
            )
        if len(self._pending) >= self._config.max_queued_requests:
            raise Unavailable("Too many media wait to be prepared. Try again later.")

    def _traced(self, received: Received, request: Prepare, children: DecodePool) -> Prepared:
        with span("prepare", received.envelope.trace):
            return prepare(self._model, request, children.prepare)

    def _answer(self, request: Prepare, made: Callable[[], Prepared]) -> Message:
        try:
            return made()
        except BatonError as error:
            return refusal(request, error)
        except Exception:
            log.exception("request %d failed", request.id)
            fault = ServerFault("The media preprocessor failed on this request.")
            return refusal(request, fault)

    def _greet(self, peer: bytes, hello: Hello, now: float) -> Message | None:
        try:
            self._roster.greet(peer, hello, now)
        except WireError as error:
            log.error("%s", error.message)
            return None
        return self._roster.me


def setup_of(images: Images, config: Config) -> Setup:
    """Configuration of the child processes."""
    return Setup(
        images.processor, config.max_media_bytes, config.max_image_pixels, config.media_memory
    )


def refusal(request: Prepare, error: BatonError) -> RequestError:
    """An error on the wire."""
    return RequestError(request.id, error.code, error.message, error.param, error.status)


def serve(config: Config, life: Lifecycle) -> int:
    """Read the model's configuration and serve until the end. Returns the exit code."""
    model = read_model(resolve(config), served_name(config))
    me = default_name("mm-preprocess")
    info = MediaInfo(model.name, model.modalities)
    hello = Hello("mm-preprocess", me, incarnation(), __version__, media=info)
    standby.wait()
    address = bind_address(config, MEDIA, config.bind)
    found = directory(config)
    trusted, keys = config.trusted_network, own_keys(config)
    with Server(MEDIA, address, trusted_network=trusted, keys=keys) as server:
        found.announce(MEDIA, me, config.advertise or address)
        log.info(
            "serving %s (%s) at %s", model.name, ", ".join(model.modalities) or "text", address
        )
        with closing(Preprocessor(model, hello, server, config)) as preprocessor:
            while not life.over(preprocessor.idle):
                preprocessor.step()
    found.close()
    return 0
