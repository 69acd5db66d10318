"""The service: tells gateways which media the model takes, and answers each Prepare."""

from __future__ import annotations

import time

from baton import __version__
from baton.discovery import bind_address, directory
from baton.errors import BatonError, ServerFault, WireError
from baton.hub import resolve, served_name
from baton.keys import own_keys
from baton.logs import logger
from baton.peers import Roster, incarnation
from baton.protocol import Beat, Hello, MediaInfo, Message, Prepare, Prepared, Refused
from baton.service import Life, default_name
from baton.telemetry import span
from baton.topology import MEDIA
from baton.transport import Received, Server, wait
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.modalities import Model, read_model

_IDLE_SECONDS = 0.05
"""How long the loop sleeps when there is nothing to do."""

log = logger(__name__)


def prepare(model: Model, request: Prepare) -> Prepared:
    """Check the media of a request. Raises `InvalidRequest` for the first that cannot be served."""
    for item in request.items:
        model.check(item)
    return Prepared(request.id, placeholders=(), hashes=())


class Preprocessor:
    """The service without its process."""

    def __init__(self, model: Model, hello: Hello, server: Server) -> None:
        self._model = model
        self._server = server
        self._roster = Roster(hello)

    def turn(self, now: float) -> None:
        """Answer what has arrived and forget lost gateways."""
        for received in self._server.drain():
            reply = self._reply(received, now)
            if reply is not None:
                self._server.send(received.peer, reply, received.envelope)
        for lost in self._roster.expire(now):
            log.warning("gateway %s is gone", lost.hello.name)

    def step(self) -> None:
        """Wait until there is something to do, and do it."""
        wait((self._server,), _IDLE_SECONDS)
        self.turn(time.monotonic())

    def _reply(self, received: Received, now: float) -> Message | None:
        match received.message:
            case Prepare() as request:
                with span("prepare", received.envelope.trace):
                    return self._answer(request)
            case Beat() as beat:
                return self._roster.beat(beat, now)
            case Hello() as hello:
                return self._greet(received.peer, hello, now)
            case _:
                return None

    def _answer(self, request: Prepare) -> Message:
        try:
            return prepare(self._model, request)
        except BatonError as error:
            failure = error
        except Exception:
            log.exception("request %d failed", request.id)
            failure = ServerFault("The media preprocessor failed on this request.")
        return Refused(request.id, failure.code, failure.message, failure.param, failure.status)

    def _greet(self, peer: bytes, hello: Hello, now: float) -> Message | None:
        try:
            self._roster.greet(peer, hello, now)
        except WireError as error:
            log.error("%s", error.message)
            return None
        return self._roster.me


def serve(config: Config, life: Life) -> int:
    """Read the model's configuration and serve until the end. Returns the exit code."""
    model = read_model(resolve(config), served_name(config))
    me = default_name("mm-preprocess")
    info = MediaInfo(model.name, model.modalities)
    hello = Hello("mm-preprocess", me, incarnation(), __version__, media=info)
    address = bind_address(config, MEDIA, config.bind)
    found = directory(config)
    trusted, keys = config.trusted_network, own_keys(config)
    with Server(MEDIA, address, trusted_network=trusted, keys=keys) as server:
        found.announce(MEDIA, me, config.advertise or address)
        log.info(
            "serving %s (%s) at %s", model.name, ", ".join(model.modalities) or "text", address
        )
        preprocessor = Preprocessor(model, hello, server)
        while not life.over(idle=True):
            preprocessor.step()
    found.close()
    return 0
