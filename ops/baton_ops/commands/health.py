"""Health check of one service, for containers.

    python -m baton_ops.commands.health worker        exit code 0 or 1, and a sentence

Run it with the settings of the service. A server is healthy when its main loop replies to the
heartbeat of an unknown peer with `HelloRequest`. A worker is healthy when the scheduler, which
monitors its progress, lists it as ready. The gateway is checked through /health/ready.
"""

from __future__ import annotations

import http.client
import socket
import sys
import time
from collections.abc import Iterator

from baton import __version__
from baton.errors import BatonError, SettingsError, Unavailable
from baton.net.curve import CurveKeys, own_keys
from baton.net.discovery import bind_address, directory
from baton.net.handshake import BEAT_SECONDS, incarnation
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET, LINKS, Link
from baton.process.lifecycle import fail
from baton.protocol import Beat, Hello, HelloRequest, Message, Stats, WorkerStats
from baton.settings import SERVICES, Settings, config_classes

SECONDS = 3.0
"""Time limit for a reply of a healthy service."""


def own_address(settings: Settings, link: Link) -> str:
    """Return the local address of the socket that a service binds for `link`."""
    bind = str(getattr(settings, "bind", ""))
    return bind_address(settings, link, bind).replace("tcp://*:", "tcp://127.0.0.1:")


def answers(
    link: Link, address: str, seconds: float = SECONDS, keys: CurveKeys | None = None
) -> None:
    """Send a heartbeat without a handshake. Raises `Unavailable` when the server does not reply."""
    number = incarnation()
    with Client(link, address, f"health-{number}".encode(), keys) as client:
        beat = Beat(f"health-{number}", number)
        if any(isinstance(message, HelloRequest) for message in _exchange(client, beat, seconds)):
            return
    raise Unavailable(f"The {link.server} does not answer on link {link.name}.")


def listed(
    address: str, prefix: str, seconds: float = SECONDS, keys: CurveKeys | None = None
) -> WorkerStats:
    """Return the worker whose name starts with `prefix`, as reported by the scheduler.

    Raises `Unavailable` when the scheduler does not reply, does not list the worker, or reports it
    as hung.
    """
    number = incarnation()
    hello = Hello("health", f"health-{number}", number, __version__)
    states: list[str] = []
    with Client(FLEET, address, hello.name.encode(), keys) as client:
        for message in _exchange(client, hello, seconds):
            workers = message.workers if isinstance(message, Stats) else ()
            matching = [worker for worker in workers if worker.name.startswith(prefix)]
            if (ready := next((w for w in matching if w.state == "ready"), None)) is not None:
                return ready
            states += [worker.state for worker in matching]
    state = f"it is {states[-1]}" if states else "it has not joined"
    raise Unavailable(f"The scheduler does not list this worker as ready: {state}.")


def _exchange(client: Client, message: Message, seconds: float) -> Iterator[Message]:
    """Send the message at intervals and yield the replies until the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        client.send(message)
        wait((client,), BEAT_SECONDS)
        yield from (received.message for received in client.drain())


def page_says_ready(port: int) -> None:
    """Query the gateway on this host. Raises `Unavailable` with its reason."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        if answer.status != 200:
            raise Unavailable(f"The gateway is not ready: {answer.read(500)!r}")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"The gateway does not answer: {error}") from error
    finally:
        connection.close()


def check(service: str, settings: Settings) -> None:
    """Raise `BatonError` unless the service makes progress."""
    if service == "gateway":
        page_says_ready(int(getattr(settings, "port", 0)))
    elif service == "worker":
        discovery = directory(settings)
        try:
            name = str(getattr(settings, "name", "")) or f"worker-{socket.gethostname()}-"
            listed(discovery.first(FLEET), name, keys=own_keys(settings))
        finally:
            discovery.close()
    else:
        [link] = [k for k in LINKS if k.server == service and k.client == "gateway"]
        answers(link, own_address(settings, link), keys=own_keys(settings))


def main() -> None:
    """Check the service named by the first argument."""
    service = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        if service not in SERVICES:
            raise SettingsError(f"Name a service: {', '.join(SERVICES)}.")
        check(service, config_classes()[service].load(sys.argv[2:]))
    except BatonError as error:
        fail("baton health", error)
    print(f"{service} makes progress")


if __name__ == "__main__":
    main()
