"""Which `HostCache` headers are answered: the defence of a local server against DNS rebinding.

A page of a hostile site can point its own name at 127.0.0.1 and read a server that listens there
without a key. Its requests still carry the site's name, so a gateway on a loopback address answers
only to names that mean this machine, unless the operator lists others.
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
    """The host of a `HostCache` header without its port, lower case: "[::1]:8000" gives "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


class AllowedHosts:
    """The names that this gateway answers to."""

    def __init__(self, listed: str, bound: str) -> None:
        names = {name.strip().lower() for name in listed.split(",") if name.strip()}
        self._any = _OPEN_ALL in names or not (names or _is_loopback(bound))
        # Browsers always send a name; a request without one is no rebinding.
        self._names = frozenset({*names, "localhost", ""})

    def check(self, headers: Headers) -> None:
        """Raise `InvalidRequest` (421) for a name that is not ours."""
        name = host_name(headers.get("host", ""))
        if self._any or name in self._names or _is_address(name):
            return
        raise InvalidRequest(
            "This server does not answer to that host name. The operator can list it in "
            "BATON_GATEWAY_ALLOWED_HOSTS.",
            code="misdirected_request",
            status=421,
        )
