"""Where `baton serve` listens, how long it waits, and what it says when it is ready."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from starlette.datastructures import Headers

from baton.errors import BatonError, SettingsError
from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.config import Config
from baton_ops.supervisor.options import Serve, serve_config
from baton_ops.supervisor.startup import Address, Startup, ask, example, listening, operator_key


def load(*argv: str) -> Serve:
    return serve_config().load(argv)


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"Cannot listen on 127.0.0.1 port {port}"):
            listening({"BATON_GATEWAY_PORT": str(port)})


def test_port_zero_becomes_a_fixed_port() -> None:
    address = listening({"BATON_GATEWAY_PORT": "0"})
    assert address.host == "127.0.0.1" and address.port > 0


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_the_url_can_be_opened_on_this_machine(host: str, url: str) -> None:
    assert Address(host, 80).url() == url


def test_a_key_is_used_and_not_shown() -> None:
    keys = {"BATON_GATEWAY_API_KEY": "secret, other", "BATON_GATEWAY_ADMIN_API_KEY": "root"}
    address = listening({"BATON_GATEWAY_PORT": "0"} | keys)
    assert (address.key, address.admin_key) == ("secret", "root")
    assert "secret" not in example(load(), address)
    assert "Bearer YOUR_KEY" in example(load(), address)
    assert "/v1/embeddings" in example(load(), address, "embed")
    of_file = listening({"BATON_GATEWAY_PORT": "0", "BATON_GATEWAY_API_KEY_FILE": "keys.toml"})
    assert "Bearer YOUR_KEY" in example(load(), of_file)
    assert "Bearer" not in example(load(), of_file._replace(wants_key=False))


def test_the_supervisor_has_an_operator_key_of_its_own_where_clients_need_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With it the banner knows what a client's key does not show, and nothing else changes."""
    for name in ("API_KEY", "API_KEY_FILE", "ADMIN_API_KEY"):
        monkeypatch.delenv(f"BATON_GATEWAY_{name}", raising=False)
    settings = ({"BATON_GATEWAY_API_KEY": "secret"}, {"BATON_GATEWAY_API_KEY_FILE": "keys.toml"})
    for setting in settings:
        made = [operator_key(setting)["BATON_GATEWAY_ADMIN_API_KEY"] for _ in range(2)]
        assert made[0] != made[1] and min(map(len, made)) > 40
        assert operator_key(setting | {"BATON_GATEWAY_ADMIN_API_KEY": "root"}) == {}
    assert operator_key({}) == operator_key({"BATON_GATEWAY_API_KEY": " , "}) == {}
    config = Config(api_key="secret", admin_api_key=made[0])
    keys = ApiKeys(config)
    bearer = [Headers({"authorization": f"Bearer {key}"}) for key in ("secret", made[0])]
    assert [keys.check("/fleet", each).operator for each in bearer] == [False, True]


@pytest.mark.parametrize("port", ["eighty", "-1", "99999"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(SettingsError):
        listening({"BATON_GATEWAY_PORT": port})


class Page(BaseHTTPRequestHandler):
    """A gateway that becomes ready at the third question."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        ready = self.path == "/fleet" or type(self).asked > 2
        workers = [
            {
                "role": "both",
                "device": "cpu",
                "dtype": "bfloat16",
                "weight_bytes": 2**20,
                "kv_bytes": 2**21,
            }
        ]
        body = json.dumps({"reasons": ["no worker"], "workers": workers}).encode()
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test output clean."""


@pytest.fixture
def gateway() -> Iterator[int]:
    Page.asked = 0
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_gateway_that_does_not_answer_is_status_zero() -> None:
    assert ask(listening({"BATON_GATEWAY_PORT": "0"}), "/health") == (0, {})


def test_startup_waits_until_the_gateway_is_ready(
    gateway: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_ops.supervisor.startup._PROBE_SECONDS", 0.0)
    startup = Startup(load(), Address("127.0.0.1", gateway))
    assert [startup.tick(0) for _ in range(4)] == [False, False, True, False]


def test_startup_gives_up(gateway: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_ops.supervisor.startup._PROBE_SECONDS", 0.0)
    with pytest.raises(BatonError, match="not ready"):
        Startup(load("--startup-timeout", "0.000001"), Address("127.0.0.1", gateway)).tick(0)
    with pytest.raises(BatonError, match="6 restarts"):
        Startup(load(), Address("127.0.0.1", gateway)).tick(6)


def test_the_banner_says_all_that_a_user_needs(gateway: int) -> None:
    out = StringIO()
    Startup(load("org/tiny"), Address("127.0.0.1", gateway)).announce_ready(
        Console(file=out, width=60)
    )
    text = out.getvalue()
    for part in (
        f"http://127.0.0.1:{gateway}",
        "org/tiny",
        "cpu, bfloat16",
        "weights 1 MiB",
        f"curl http://127.0.0.1:{gateway}/v1/chat/completions",
    ):
        assert part in text
