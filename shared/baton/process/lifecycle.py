"""Life cycle of one service process: start, signals, heartbeat, drain, exit code."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from baton.errors import BatonError, SettingsError
from baton.logs import logger, setup
from baton.net.curve import CurveKeys
from baton.net.discovery import Directory
from baton.net.handshake import BEAT_SECONDS
from baton.net.sockets import Client
from baton.net.topology import Link
from baton.protocol import Beat, Hello, HelloRequest
from baton.settings import Settings
from baton.telemetry import configure

EXIT_SETTINGS = 2
"""Bad flags or variables: a restart cannot help."""
EXIT_MODEL = 3
"""The model cannot be found or loaded: a restart cannot help."""
EXIT_FAULT = 70
"""Something broke while running: restart."""

log = logger(__name__)
C = TypeVar("C", bound=Settings)


class Lifecycle:
    """Whether this process should go on. The first SIGTERM or SIGINT drains, the second ends it."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self.draining_until: float | None = None
        """Monotonic time by which draining must be over; None while nothing has asked to stop."""

    def watch(self) -> None:
        """Install the signal handlers. Main thread only."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.draining_until is not None:
            sys.exit(128 + number)
        self.stop()

    def stop(self) -> None:
        """Begin to drain."""
        self.draining_until = time.monotonic() + self._drain_seconds

    @property
    def draining(self) -> bool:
        """Something has asked this process to stop."""
        return self.draining_until is not None

    def over(self, idle: bool) -> bool:
        """True when the process should end: it drains, and it is idle or out of time."""
        if self.draining_until is None:
            return False
        return idle or time.monotonic() >= self.draining_until


def default_name(service: str) -> str:
    """A name that is unique in a deployment: service, host, process."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}"


def main(service: str, config: type[C], serve: Callable[[C, Lifecycle], int]) -> None:
    """Run a service: read settings, set up logs and signals, serve, exit with a telling code."""
    try:
        settings = config.load(sys.argv[1:])
        setup(service, settings.log_level)
        configure(service, settings.otlp_endpoint)
        life = Lifecycle(settings.shutdown_timeout)
        life.watch()
        code = serve(settings, life)
    except SettingsError as error:
        print(f"baton {service}: {error.message}", file=sys.stderr)
        code = EXIT_SETTINGS
    except BatonError as error:
        print(f"baton {service}: {error.message}", file=sys.stderr)
        code = EXIT_MODEL if error.code in {"bad_model", "model_unavailable"} else EXIT_FAULT
    except Exception:
        log.exception("the %s failed and will be restarted by its supervisor", service)
        code = EXIT_FAULT
    sys.exit(code)


class Heartbeat(threading.Thread):
    """Heartbeats of a process whose main thread computes for longer than a beat.

    Uses a connection of its own: ZeroMQ sockets belong to one thread. The main thread says
    Hello; this one only says that the process lives and how far it has come.
    """

    def __init__(
        self,
        link: Link,
        directory: Directory,
        hello: Hello,
        progress: Callable[[], tuple[int, bool]],
        keys: CurveKeys | None = None,
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self.stranger = threading.Event()
        """Set when the server does not know us: the main thread must say Hello again."""
        self._link, self._directory, self._hello = link, directory, hello
        self._progress, self._keys = progress, keys
        self._stopped = threading.Event()

    def run(self) -> None:
        identity = f"{self._hello.name}/beat".encode()
        address = self._directory.first(self._link)
        with Client(self._link, address, identity, self._keys) as client:
            while not self._stopped.wait(BEAT_SECONDS):
                client.follow(self._directory.first(self._link))
                progress, busy = self._progress()
                client.send(Beat(self._hello.name, self._hello.incarnation, progress, busy))
                if any(isinstance(r.message, HelloRequest) for r in client.drain()):
                    self.stranger.set()

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._stopped.set()
        self.join(timeout=2.0)
