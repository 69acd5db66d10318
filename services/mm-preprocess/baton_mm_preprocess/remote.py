"""Downloads media files from web servers allowed by the operator; it fails closed.

Names are resolved here, and the connection goes to the checked address, so a name that changes its
address in between reaches nothing. Each redirect is checked like a URL.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Iterable, Sequence
from urllib.parse import SplitResult, urljoin, urlsplit

from baton.errors import InvalidRequest
from baton_mm_preprocess.media_errors import EXAMPLES, empty, too_large

MAX_REDIRECTS = 3
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_SECONDS = 5.0
"""Time limit of each network operation; that of the whole download is the process's."""
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""IPv6 ranges that map IPv4 addresses, including private ones."""
_CHUNK = 65_536

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def download(url: str, most: int, allowed: Sequence[str], kind: str = "image") -> bytes:
    """The file at an http or https URL, of at most `most` bytes.

    Args:
        allowed: hosts, such as "example.org", "*.example.org", "example.org:8443" or "*" for all
            public ones.
        kind: modality of the file, "image" or "video".

    Raises:
        InvalidRequest: the URL or a redirect is not allowed, or there is no file.
    """
    for _ in range(MAX_REDIRECTS + 1):
        parts = _checked(url, allowed, kind)
        response = _get(parts, most, kind)
        if isinstance(response, bytes):
            return response
        url = _redirected(url, response, kind)
    raise _unreachable(f"it redirects more than {MAX_REDIRECTS} times", kind)


def is_public(address: Address) -> bool:
    """Whether an address is public."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        hidden = address.sixtofour is not None or address.teredo is not None
        if hidden or any(address in network for network in _TRANSLATED):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _checked(url: str, allowed: Sequence[str], kind: str) -> SplitResult:
    """The parts of a URL whose host is allowed."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise _refused("it is not a URL", kind) from error
    if parts.scheme not in _PORTS or not host:
        raise _refused("it is not an http or https URL", kind)
    if parts.username is not None or parts.password is not None:
        raise _refused("it holds a user name", kind)
    if not _is_allowed(host, port, allowed):
        raise _refused(
            f"the server {host[:100]} is not one of those that the operator has allowed", kind
        )
    return parts


def _redirected(url: str, place: str, kind: str) -> str:
    """The URL that a redirect from `url` leads to."""
    try:
        return urljoin(url, place)
    except ValueError as error:
        raise _refused("it redirects to something that is not a URL", kind) from error


def _is_allowed(host: str, port: int | None, allowed: Iterable[str]) -> bool:
    """Whether an entry names the host, or the host and its port. Entries without a port, "*" among
    them, cover the usual ports only. IPv6 addresses are in brackets where a port follows."""
    bracketed = f"[{host}]" if ":" in host else host
    names = {f"{bracketed}:{port}"}
    if usual := port in (None, *_PORTS.values()):
        names |= {host, bracketed}
    return any(
        entry in names
        or (entry == "*" and usual)
        or (entry.startswith("*.") and any(name.endswith(entry[1:]) for name in names))
        for entry in (one.lower() for one in allowed)
    )


def _get(parts: SplitResult, most: int, kind: str) -> bytes | str:
    """Returns the file, or the target of a redirect."""
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    try:
        connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    except http.client.InvalidURL as error:
        raise _refused("its host name has spaces or control characters", kind) from error
    try:
        connection.sock = _connected(host, port, kind, secure=parts.scheme == "https")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Accept": f"{kind}/*", "Accept-Encoding": "identity", "User-Agent": "baton"}
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            return _body(answer, most, kind)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(type(error).__name__, kind) from error
    finally:
        connection.close()


def _connected(host: str, port: int, kind: str, *, secure: bool) -> socket.socket:
    """A connection to a public address of the host; all of its addresses must be public."""
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]).partition("%")[0] for entry in resolved]
    if not addresses or not all(is_public(ipaddress.ip_address(each)) for each in addresses):
        raise _refused(f"the server {host[:100]} has an address that is not public", kind)
    plain = socket.create_connection((addresses[0], port), _SECONDS)
    if not secure:
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _body(answer: http.client.HTTPResponse, most: int, kind: str) -> bytes | str:
    if answer.status in _REDIRECTS and (place := answer.getheader("Location")):
        return place
    if answer.status != 200:
        raise _unreachable(f"its server answered {answer.status}", kind)
    data = bytearray()
    while chunk := answer.read(min(_CHUNK, most + 1 - len(data))):
        data += chunk
        if len(data) > most:
            raise too_large(most, kind)
    if not data:
        raise empty(kind)
    return bytes(data)


def _refused(why: str, kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"This URL is not fetched: {why}. Send the file itself, as {EXAMPLES[kind]}",
        code="media_not_allowed",
    )


def _unreachable(why: str, kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"The {kind} cannot be fetched from its URL: {why}.", code=f"{kind}_fetch_failed"
    )
