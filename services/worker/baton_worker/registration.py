"""A worker's registration with the scheduler: Hello, heartbeats, and the messages in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import msgspec

from baton import __version__
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory
from baton.net.handshake import ClientHandshake, incarnation, unique_identity
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import Heartbeat, Lifecycle
from baton.protocol import Drain, Envelope, HeldPages, Hello, Message, WorkerInfo
from baton_worker.config import Config

log = logger(__name__)


class Registration:
    """The connection to the scheduler.

    Each registration is an epoch of its own: when the scheduler has dropped this worker (it
    restarted, or declared the worker lost), `lost` is true until `renew` begins another. Messages
    of older epochs are to be dropped.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        where: Directory,
        life: Lifecycle,
        info: WorkerInfo,
        progress: Callable[[], tuple[int, bool]],
        held: Callable[[], HeldPages | None] = lambda: None,
    ) -> None:
        """
        Args:
            info: the description of the worker; it may be changed for the next Hello.
            progress: for heartbeats, a number that grows while the worker advances, and whether it
                has work.
            held: the contents of its pages, for each Hello.
        """
        self._name, self._where, self._life, self.info = name, where, life, info
        self._get_progress, self._get_held = progress, held
        self._keys = own_keys(config)
        self._client = Client(FLEET, where.first(FLEET), unique_identity(name), self._keys)
        self._heartbeat: Heartbeat | None = None
        self._drained = self._forgotten = False
        self._handshake = self._new_handshake()

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop_beats()
        self._client.close()

    @property
    def epoch(self) -> int:
        """The incarnation of the last Hello."""
        return self.hello.incarnation

    @property
    def hello(self) -> Hello:
        """The Hello of this epoch."""
        return self._handshake.hello

    @property
    def lost(self) -> bool:
        """Whether the scheduler does not know this worker, or messages may be lost."""
        rejected = self._heartbeat is not None and self._heartbeat.rejected.is_set()
        return rejected or self._forgotten

    def update_info(self, **changes: Any) -> None:
        """Change the description of this worker in every later Hello, also of this epoch."""
        self.info = msgspec.structs.replace(self.info, **changes)
        self._handshake.hello = msgspec.structs.replace(self.hello, worker=self.info)

    def wait(self, seconds: float, file: int | None = None) -> None:
        """Wait for a message, or until a file descriptor is readable, at most so long."""
        self._client.follow(self._where.first(FLEET))
        if seconds > 0:
            wait((self._client,), seconds, file)

    def messages(self) -> Iterator[Message]:
        """The messages received, without those of the registration itself."""
        if self._client.broke() and self._handshake.server is not None:
            self._forgotten = True
        for received in self._client.drain():
            message, is_welcome = received.message, self._handshake.server is not None
            if self._handshake.receive(message, time.monotonic()):
                self._joined()
            elif is_welcome and self._handshake.server is None:
                self._forgotten = True
            elif isinstance(message, Drain):
                self._life.stop()
            else:
                yield message

    def send(self, message: Message | None, envelope: Envelope | None = None) -> bool:
        """Returns False for no message, and where the scheduler cannot be reached."""
        return message is not None and self._client.send(message, envelope)

    def send_due(self) -> None:
        """Send the Hello until it is answered, and say once that this worker drains."""
        if self._handshake.server is None:
            self.send(self._handshake.due(time.monotonic()))
        elif self._life.draining and not self._drained:
            seconds = (self._life.draining_until or 0.0) - time.monotonic()
            self._drained = self.send(Drain(max(seconds, 0.0)))

    def renew(self) -> None:
        """Begin a new epoch."""
        self.stop_beats()
        self._drained = self._forgotten = False
        self._handshake = self._new_handshake()

    def stop_beats(self) -> None:
        """Send no more beats of this epoch."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None

    def _joined(self) -> None:
        """The scheduler has answered this epoch's Hello: from now on, beats tell how it fares."""
        log.info("joined the scheduler as %s, role %s", self._name, self.info.role)
        self.stop_beats()
        self._heartbeat = Heartbeat(FLEET, self._where, self.hello, self._get_progress, self._keys)
        self._heartbeat.start()

    def _new_handshake(self) -> ClientHandshake:
        of = ("worker", self._name, incarnation(), __version__)
        return ClientHandshake(Hello(*of, worker=self.info, held=self._get_held()))
