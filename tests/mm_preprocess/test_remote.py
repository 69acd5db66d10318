"""Files of other servers, and all that is refused on the way."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess import remote
from baton_mm_preprocess.remote import download, is_public

FILES = {
    "/a.png": (200, b"pixels"),
    "/once": (302, b"/a.png"),
    "/round": (302, b"/round"),
    "/inside": (301, b"http://169.254.169.254/latest/meta-data"),
    "/file": (302, b"file:///etc/passwd"),
    "/odd": (302, b"http://[::1/"),
    "/large": (200, bytes(101)),
    "/empty": (200, b""),
    "/gone": (404, b"no"),
}


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, content = FILES[self.path]
        self.send_response(status)
        if 300 < status < 400:
            self.send_header("Location", content.decode())
            content = b""
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on this host, whose address counts as public here."""
    server = HTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    local = ipaddress.ip_address("127.0.0.1")
    monkeypatch.setattr(remote, "is_public", lambda address: address == local or is_public(address))
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_of_an_allowed_server(site: str) -> None:
    for path in ("/a.png", "/once"):
        assert download(f"http://{site}{path}", 100, (site,)) == b"pixels"


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/inside", "media_not_allowed", "169.254.169.254 is not one of those"),
        ("/file", "media_not_allowed", "not an http"),
        ("/odd", "media_not_allowed", "redirects to something that is not a URL"),
        ("/round", "image_fetch_failed", "more than 3 times"),
        ("/large", "image_too_large", "larger than the 100 bytes"),
        ("/empty", "empty_image_file", "empty"),
        ("/gone", "image_fetch_failed", "answered 404"),
    ],
)
def test_what_a_server_may_not_do(site: str, path: str, code: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        download(f"http://{site}{path}", 100, (site,))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://example.org/a.png", ()),
        ("http://example.org/a.png", ("example.com", "*.example.org")),
        ("http://evilexample.org/a.png", ("*.example.org", "example.org")),
        ("http://example.org:22/a.png", ("example.org", "*")),
        ("http://example.org@127.0.0.1/", ("example.org",)),
        ("http://user@example.org/", ("example.org",)),
        ("http://[::1/", ("*",)),
        ("http://ex ample.org/", ("*",)),
        ("ftp://example.org/", ("*",)),
        ("http://127.0.0.1/", ("*",)),
        ("http://localhost/", ("localhost",)),
        ("https://[::ffff:10.0.0.1]/", ("*",)),
        ("http://[2606:4700::1]:8443/", ("2606:4700::1", "2606:4700::1:8443", "*")),
    ],
)
def test_it_fails_closed(url: str, allowed: tuple[str, ...]) -> None:
    """Whatever is not allowed, or is allowed by name and has an address inside."""
    with pytest.raises(InvalidRequest) as caught:
        download(url, 100, allowed)
    assert caught.value.code == "media_not_allowed"


@pytest.mark.parametrize("entry", ["*", "2606:4700::1111", "[2606:4700::1111]"])
def test_ipv6_addresses_of_the_internet_are_allowed(
    site: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def connected(host: str, port: int, kind: str, *, secure: bool) -> socket.socket:
        asked.append((host, port))
        return socket.create_connection(("127.0.0.1", int(site.partition(":")[2])))

    monkeypatch.setattr(remote, "_connected", connected)
    assert download("http://[2606:4700::1111]/a.png", 100, (entry,)) == b"pixels"
    assert download("http://[2606:4700::1111]:8443/a.png", 100, ("[2606:4700::1111]:8443",))
    assert asked == [("2606:4700::1111", 80), ("2606:4700::1111", 8443)]


def test_addresses_of_the_internet() -> None:
    inside = "127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 ::1 fe80::1 fd00::1"
    inside += (
        " ::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: ::127.0.0.1 ::ffff:0:127.0.0.1 240.0.0.1"
    )
    assert not any(is_public(ipaddress.ip_address(each)) for each in inside.split())
    assert all(is_public(ipaddress.ip_address(each)) for each in ("8.8.8.8", "2606:4700::1111"))
