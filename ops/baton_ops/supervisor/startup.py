"""Start of `baton serve`: the address, readiness, and the banner."""

import http.client
import json
import secrets
import socket
import time
from typing import Any, NamedTuple

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from baton.checkpoint.hub import served_name
from baton.errors import BatonError, SettingsError
from baton.logs import logger
from baton.settings import environment
from baton_ops.supervisor.options import Serve

_PROBE_SECONDS = 0.2
_LINE_SECONDS = 5.0
_START_RESTARTS = 5
"""Maximum restarts of all services before the system is first ready."""
log = logger(__name__)


class Address(NamedTuple):
    """Address of the gateway, a key that it accepts, and an operator's key."""

    host: str
    port: int
    key: str = ""
    admin_key: str = ""
    wants_key: bool = False
    """Whether clients need a key; with --api-key-file alone, none of them is known here."""

    def local(self) -> str:
        """Host name or address by which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def url(self) -> str:
        """The base URL that a client on this machine uses."""
        host = self.local()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def listening(explicit: dict[str, str]) -> Address:
    """The address of the gateway. Raises `SettingsError` if it is not available.

    Port 0 is resolved here, so that a restarted gateway has the same address.
    """
    env = {**environment(), **explicit}
    host = env.get("BATON_GATEWAY_HOST", "127.0.0.1")
    text = env.get("BATON_GATEWAY_PORT", "8000")
    key, admin_key = (
        env.get(f"BATON_GATEWAY_{name}", "").partition(",")[0].strip()
        for name in ("API_KEY", "ADMIN_API_KEY")
    )
    if not text.isdigit():
        raise SettingsError(f"BATON_GATEWAY_PORT must be a number (got '{text}').")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(text)))
        except (OSError, OverflowError) as error:
            raise SettingsError(
                f"Cannot listen on {host} port {text}: {error}. Choose another --host or --port; "
                "--port 0 takes any free port."
            ) from error
        wants_key = bool(key or env.get("BATON_GATEWAY_API_KEY_FILE"))
        return Address(host, int(probe.getsockname()[1]), key, admin_key, wants_key)


def operator_key(explicit: dict[str, str]) -> dict[str, str]:
    """A random operator's key for the supervisor, as a setting of the gateway.

    Empty if an operator's key is configured, and without keys: reading is open then, and an
    operator's key would close it.
    """
    env = {**environment(), **explicit}
    has_keys, has_operators = (
        bool(env.get(f"BATON_GATEWAY_{name}", "").replace(",", "").strip())
        for name in ("API_KEY", "ADMIN_API_KEY")
    )
    has_keys = has_keys or bool(env.get("BATON_GATEWAY_API_KEY_FILE"))
    if has_operators or not has_keys:
        return {}
    return {"BATON_GATEWAY_ADMIN_API_KEY": secrets.token_urlsafe()}


def ask(address: Address, path: str) -> tuple[int, dict[str, Any]]:
    """GET a JSON page of the gateway: status and body; status 0 without a response."""
    connection = http.client.HTTPConnection(address.local(), address.port, timeout=2.0)
    key = address.admin_key or address.key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = json.loads(answer.read() or b"{}")
        return answer.status, body if isinstance(body, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()


class Startup:
    """Waits until the gateway reports readiness, and logs the progress."""

    def __init__(self, config: Serve, address: Address) -> None:
        self._config, self._address = config, address
        self._started_at = self._next_probe = self._last_line = time.monotonic()
        self._ready = False

    def tick(self, restarts: int) -> bool:
        """Poll, if it is time to. True once, when everything is ready.

        Raises `BatonError` after too long or too many restarts.
        """
        now = time.monotonic()
        if self._ready or now < self._next_probe:
            return False
        self._next_probe = now + _PROBE_SECONDS
        status, body = ask(self._address, "/health/ready")
        self._ready = status == 200
        if not self._ready:
            self._report_waiting(now - self._started_at, restarts, body)
        return self._ready

    def _report_waiting(self, waited: float, restarts: int, body: dict[str, Any]) -> None:
        if waited > self._config.startup_timeout or restarts > _START_RESTARTS:
            raise BatonError(
                f"The system was not ready after {waited:.0f} s and {restarts} restarts; the lines "
                "above say why. --startup-timeout gives it longer."
            )
        if time.monotonic() >= self._last_line + _LINE_SECONDS:
            self._last_line = time.monotonic()
            reasons = "; ".join(body.get("reasons", ["the gateway does not answer"]))
            log.info("not ready yet after %.0f s: %s", waited, reasons)

    def announce_ready(self, console: Console) -> None:
        """Print the banner of the system that has become ready, and an example request."""
        waited = time.monotonic() - self._started_at
        _, fleet = ask(self._address, "/fleet")
        console.print(banner(self._config, self._address, fleet.get("workers", []), waited))
        request = example(self._config, self._address, fleet.get("task", "generate"))
        console.print(request, markup=False, soft_wrap=True)


def banner(config: Serve, address: Address, workers: list[dict[str, Any]], seconds: float) -> Panel:
    """Facts about the running system."""
    rows = Table.grid(padding=(0, 2))
    rows.add_row("[bold]URL[/]", f"{address.url()}   (a chat page is at /)")
    rows.add_row("[bold]model[/]", f"{served_name(config)}   ({config.model})")
    for worker in workers:
        role = "" if worker["role"] == "both" else f"{worker['role']}: "
        rows.add_row("[bold]device[/]", f"{role}{worker['device']}, {worker['dtype']}")
        rows.add_row("[bold]memory[/]", _memory(worker))
    rows.add_row("[bold]ready[/]", f"after {seconds:.1f} s; Ctrl-C drains and ends all")
    return Panel(rows, title="Baton", expand=False)


_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "generate": (
        "/v1/chat/completions",
        {
            "temperature": 0.2,
            "messages": [{"role": "user", "content": "What is a relay race?"}],
        },
    ),
    "embed": ("/v1/embeddings", {"input": "What is a relay race?"}),
    "classify": ("/classify", {"input": "What is a relay race?"}),
    "score": ("/score", {"text_1": "What is a relay race?", "text_2": "A race of teams."}),
    "reward": ("/pooling", {"input": "A relay race is a race of teams."}),
}
"""Path and body of an example request, by the model's task."""


def example(config: Serve, address: Address, task: str = "generate") -> str:
    """An example request, for pasting into a shell."""
    path, fields = _EXAMPLES[task]
    body = json.dumps({"model": served_name(config), **fields})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if address.wants_key else ""
    head = f"curl {address.url()}{path} -H 'Content-Type: application/json'{key}"
    return f"{head} \\\n  -d '{body}'"


def _memory(worker: dict[str, Any]) -> str:
    mebibyte = 1024 * 1024
    weights, pages = worker["weight_bytes"] / mebibyte, worker["kv_bytes"] / mebibyte
    return f"weights {weights:,.0f} MiB, KV pages {pages:,.0f} MiB"
