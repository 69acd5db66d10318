"""`Host` header check that protects a local server against DNS rebinding.

A hostile page can resolve its own name to 127.0.0.1 and read a local server that needs no key. Its
requests still carry the page's host name, so a gateway on a loopback address accepts only names of
this machine, unless the operator lists others.
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers

from baton.errors import InvalidRequest

_OPEN_ALL = "*"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def host_name(header: str) -> str:
    """Return the host of a `Host` header in lower case without its port: "[::1]:8000" gives
    "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


class AllowedHosts:
    """Host names that this gateway accepts."""

    def __init__(self, listed: str, bound: str) -> None:
        names = {name.strip().lower() for name in listed.split(",") if name.strip()}
        self._any = _OPEN_ALL in names or not (names or _is_loopback(bound))
        # Browsers always send a host name, so a request without one is no rebinding attack.
        self._names = frozenset({*names, "localhost", ""})

    def check(self, headers: Headers) -> None:
        """Raise `InvalidRequest` (421) for a host name that is not accepted."""
        name = host_name(headers.get("host", ""))
        if self._any or name in self._names or _is_address(name):
            return
        raise InvalidRequest(
            "This server does not answer to that host name. The operator can list it in "
            "BATON_GATEWAY_ALLOWED_HOSTS.",
            code="misdirected_request",
            status=421,
        )
