"""Life cycle of a service process: start, signals, heartbeat, drain, exit code."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from types import FrameType
from typing import NoReturn, TypeVar

from baton.errors import BatonError, SettingsError
from baton.logs import logger, setup
from baton.net.curve import CurveKeys
from baton.net.discovery import Directory
from baton.net.handshake import BEAT_SECONDS, unique_identity
from baton.net.sockets import Client
from baton.net.topology import Link
from baton.process import gc_tuning, standby
from baton.protocol import Beat, Hello, HelloRequest
from baton.settings import Settings
from baton.telemetry import configure

EXIT_SETTINGS = 2
"""Invalid flags or variables; a restart does not help."""
EXIT_MODEL = 3
"""The model cannot be found or loaded; a restart does not help."""
EXIT_FAULT = 70
"""Runtime failure; restart."""
EXIT_GROUP = 71
"""Another process of its group has ended; restart."""

log = logger(__name__)
C = TypeVar("C", bound=Settings)


def fail(program: str, error: BatonError) -> NoReturn:
    """Print an error and end a command: with 2 for wrong flags and variables, with 1 otherwise."""
    print(f"{program}: {error.message}", file=sys.stderr)
    sys.exit(EXIT_SETTINGS if isinstance(error, SettingsError) else 1)


class Lifecycle:
    """Shutdown state. The first SIGTERM or SIGINT starts draining, the second ends the process."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self.draining_until: float | None = None
        """Monotonic deadline of draining in seconds; None before a stop was requested."""

    def watch(self) -> None:
        """Install the signal handlers. Main thread only."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.draining_until is not None:
            sys.exit(128 + number)
        self.stop()

    def stop(self) -> None:
        """Start draining."""
        self.draining_until = time.monotonic() + self._drain_seconds

    @property
    def draining(self) -> bool:
        """True after a stop was requested."""
        return self.draining_until is not None

    def over(self, idle: bool) -> bool:
        """True if the process should exit: it drains and is idle, or its drain time is over."""
        if self.draining_until is None:
            return False
        return idle or time.monotonic() >= self.draining_until


def default_name(service: str) -> str:
    """A name that is unique in a deployment: service, host and process id."""
    return f"{service}-{process_id(os.getpid())}"


def process_id(pid: int) -> str:
    """Identifies a process of this host among those of all hosts."""
    return f"{socket.gethostname()}-{pid}"


def own_process_id(*, supervised: bool) -> str:
    """Identifies this process. A supervisor knows it by its number. Without one it also differs
    from its predecessor, which had the same host and number if the container was restarted."""
    pid = os.getpid()
    return process_id(pid) if supervised else f"{process_id(pid)}-{_nonce(pid)}"


@cache
def _nonce(pid: int) -> str:
    """Random, for each process: a fork has another one."""
    return secrets.token_hex(4)


def main(service: str, config: type[C], serve: Callable[[C, Lifecycle], int]) -> None:
    """Run a service: read settings, set up logs and signals, serve, exit with a specific code."""
    gc_tuning.resume()
    try:
        settings = config.load(sys.argv[1:])
        setup(service, settings.log_level)
        life = Lifecycle(settings.shutdown_timeout)
        # Exporting starts a thread, which a standby's fork would not inherit.
        standby.when_active(partial(configure, service, settings.otlp_endpoint))
        standby.when_active(life.watch)
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
    """Thread that sends heartbeats while the main thread computes for longer than a beat interval.

    It uses its own connection, since ZeroMQ sockets are bound to one thread. The main thread sends
    `Hello`; this thread only reports liveness and progress.
    """

    def __init__(
        self,
        link: Link,
        directory: Directory,
        hello: Hello,
        progress: Callable[[], tuple[int, bool]],
        keys: CurveKeys | None = None,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.rejected = threading.Event()
        """Set if the server does not know this process: the main thread must send `Hello` again."""
        self._link, self._directory, self._hello = link, directory, hello
        self._progress, self._keys = progress, keys
        self._stopped = threading.Event()

    def run(self) -> None:
        identity = unique_identity(f"{self._hello.name}/beat")
        address = self._directory.first(self._link)
        with Client(self._link, address, identity, self._keys) as client:
            while not self._stopped.wait(BEAT_SECONDS):
                client.follow(self._directory.first(self._link))
                progress, busy = self._progress()
                client.send(Beat(self._hello.name, self._hello.incarnation, progress, busy))
                if any(isinstance(r.message, HelloRequest) for r in client.drain()):
                    self.rejected.set()

    def stop(self) -> None:
        """Stop the thread and close its socket."""
        self._stopped.set()
        self.join(timeout=2.0)
