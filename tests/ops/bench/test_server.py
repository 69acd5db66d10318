"""Starting a server for a benchmark, and the errors when it does not start."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import httpx
import pytest

from baton.errors import Unavailable
from baton_ops.bench import server

SCRIPT = """#!{python}
import http.server, sys
print("arguments:", *sys.argv[1:], flush=True)
if "broken-model" in sys.argv:
    sys.exit("this model cannot be loaded")
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "never-ready" in sys.argv else 200)
        self.send_header("content-length", "0")
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script that only answers /health/ready in the place of Python."""
    script = tmp_path / "python"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(server.sys, "executable", str(script))


def test_serves_for_as_long_as_it_is_wanted(tmp_path: Path) -> None:
    log = tmp_path / "out" / "server.log"
    with server.served("a-model", ["--worker.threads", "1"], log, 30) as url:
        assert httpx.get(url).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert log.read_text().startswith("arguments: -m baton serve a-model --port ")
    assert (
        log.read_text().rstrip().partition("\n")[0].endswith("--no-fork-workers --worker.threads 1")
    )


def test_a_server_that_stops_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match=r"(?s)code 1\..*this model cannot be loaded"),
        server.served("broken-model", [], tmp_path / "log", 30),
    ):
        pytest.fail("it never came up")


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    with (
        pytest.raises(Unavailable, match="not ready after"),
        server.served("never-ready", [], tmp_path / "log", 0.5),
    ):
        pytest.fail("it never came up")


def test_free_port_is_free() -> None:
    with socket.create_server(("127.0.0.1", server.free_port())):
        pass
