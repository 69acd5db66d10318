"""Server loop of a stateless service: handshakes, requests, refusals, overload, drain.

    gateway -- Hello, Beat ---> RpcServer answers by itself
    gateway -- any request ---> RpcService.handle --> a reply: sent at once
                                                  --> Deferred: queued, sent when done

A service processes requests; the loop decides when replies are sent. It runs in one thread, so a
service needs no locks except for work that it submits elsewhere. A request ends in one reply, which
carries its envelope: `RequestError` if the service raises.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from baton.errors import BatonError, ServerFault, Unavailable, WireError
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import bind_address, directory
from baton.net.handshake import QUIET_SECONDS, PeerTable
from baton.net.sockets import Received, Server, wait
from baton.net.topology import Link
from baton.process.lifecycle import Lifecycle
from baton.process.watchdog import pulse
from baton.protocol import Beat, Hello, Message, RequestError
from baton.protocol.base import RpcRequest
from baton.settings import Settings

_IDLE_SECONDS = 0.05
"""Maximum wait of an idle loop; bounds the delay in noticing lost gateways."""
_BUSY_SECONDS = 0.001
"""Maximum wait while a thread works on a reply."""

log = logger(__name__)
T = TypeVar("T")
Compute: TypeAlias = Callable[[], Message]


class Deferred(NamedTuple):
    """A reply that takes time. If too many wait, the request is refused instead."""

    compute: Compute
    submit: Callable[[Compute], Future[Message]] | None = None
    """Runs it in another thread. None: the loop runs it, one such reply per iteration."""


class RpcService(Protocol):
    """The served functions. Life cycle: `handle` and `forget` in any order, then `close`."""

    @property
    def idle(self) -> bool:
        """True if a drained process may exit. Pending replies are counted by the server."""

    def handle(self, received: Received) -> Message | Deferred:
        """Reply to a message; may raise for a `RpcRequest`, which becomes a `RequestError`."""

    def forget(self, peer: bytes) -> None:
        """Drop the state of a client that is lost or was replaced."""

    def close(self) -> None:
        """Release threads and processes; pending work is dropped."""


class RpcServer:
    """The loop over one socket. Call `step` repeatedly, or `turn` to drive it with a clock."""

    def __init__(
        self, service: RpcService, hello: Hello, server: Server, max_queued_requests: int
    ) -> None:
        self._service, self._server = service, server
        self._peer_table = PeerTable(hello)
        self._max_queued = max_queued_requests
        self._queued: deque[tuple[Received, Compute]] = deque()
        self._running: dict[Future[Message], Received] = {}

    @property
    def idle(self) -> bool:
        """True if no reply is pending and the service is idle."""
        return not self._queued and not self._running and self._service.idle

    def turn(self, now: float) -> None:
        """Receive messages, send finished replies, forget lost clients."""
        for received in self._server.drain():
            self._receive(received, now)
        if self._queued:
            received, compute = self._queued.popleft()
            self._reply(received, compute())
        for future in [future for future in self._running if future.done()]:
            self._reply(self._running.pop(future), future.result())
        for lost in self._peer_table.expire(now, QUIET_SECONDS):
            log.warning("%s is gone", lost.hello.name)
            self._service.forget(lost.identity)

    def step(self) -> None:
        """Wait until there is something to do, and do it."""
        pulse.beat()
        seconds = 0.0 if self._queued else _BUSY_SECONDS if self._running else _IDLE_SECONDS
        wait((self._server,), seconds)
        self.turn(time.monotonic())

    def _receive(self, received: Received, now: float) -> None:
        match received.message:
            case Beat() as beat:
                self._server.send(received.peer, self._peer_table.beat(beat, now))
            case Hello() as hello:
                self._register(received.peer, hello, now)
            case RpcRequest() as request:
                self._take(received, self._attempt(request, lambda: self._handle(received)))
            case _:
                self._take(received, self._handle(received))

    def _handle(self, received: Received) -> Message | Deferred:
        return self._service.handle(received)

    def _take(self, received: Received, answer: Message | Deferred) -> None:
        if isinstance(answer, Deferred):
            self._defer(received, answer)
        else:
            self._reply(received, answer)

    def _defer(self, received: Received, deferred: Deferred) -> None:
        request = received.message
        assert isinstance(request, RpcRequest), f"{type(request).__name__} is answered at once"
        compute = partial(self._attempt, request, deferred.compute)
        if len(self._queued) + len(self._running) >= self._max_queued:
            self._reply(received, refusal(request, self._overload()))
        elif deferred.submit is None:
            self._queued.append((received, compute))
        else:
            self._running[deferred.submit(compute)] = received

    def _overload(self) -> Unavailable:
        service = self._peer_table.me.service
        return Unavailable(f"Too many requests wait for the {service} service. Try again shortly.")

    def _attempt(self, request: RpcRequest, compute: Callable[[], T]) -> T | RequestError:
        return attempt(self._peer_table.me.service, request, compute)

    def _reply(self, received: Received, answer: Message) -> None:
        self._server.send(received.peer, answer, received.envelope)

    def _register(self, peer: bytes, hello: Hello, now: float) -> None:
        if self._peer_table.is_name_taken(peer, hello, now, self._server.send):
            return
        try:
            replaced = self._peer_table.register(peer, hello, now)
        except WireError as error:
            log.error("%s", error.message)
            return
        if replaced is not None:
            self._service.forget(replaced.identity)
        self._server.send(peer, self._peer_table.me)


def attempt(service: str, request: RpcRequest, compute: Callable[[], T]) -> T | RequestError:
    """Compute a reply; an exception becomes a `RequestError`, and a bug is logged."""
    try:
        return compute()
    except BatonError as error:
        return refusal(request, error)
    except Exception:
        log.exception("request %d (%s) failed", request.id, type(request).__name__)
        return refusal(request, ServerFault(f"The {service} service failed on this request."))


def refusal(request: RpcRequest, error: BatonError) -> RequestError:
    """Convert an error to its message."""
    return RequestError(request.id, error.code, error.message, error.param, error.status)


def serve(
    service: RpcService,
    hello: Hello,
    link: Link,
    config: Settings,
    life: Lifecycle,
    *,
    bind: str,
    advertise: str,
    max_queued_requests: int,
) -> None:
    """Bind, announce, and serve until the end; closes the service.

    A draining process is withdrawn from the directory first, so that new requests go elsewhere. It
    serves until it is idle or its drain time is over.
    """
    address, discovery = bind_address(config, link, bind), directory(config)
    trusted, keys = config.trusted_network, own_keys(config)
    with (
        closing(service),
        Server(link, address, trusted_network=trusted, keys=keys) as server,
    ):
        discovery.announce(link, hello.name, advertise or address)
        log.info("listening at %s", address)
        loop = RpcServer(service, hello, server, max_queued_requests)
        while not life.draining:
            loop.step()
        discovery.close()
        while not life.over(loop.idle):
            loop.step()
