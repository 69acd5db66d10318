from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from baton.errors import InvalidRequest
from baton_gateway.http.allowed_hosts import AllowedHosts, host_name


def answers(hosts: AllowedHosts, header: str) -> bool:
    try:
        hosts.check(Headers({"host": header}))
    except InvalidRequest as error:
        assert error.status == 421 and "ALLOWED_HOSTS" in error.message
        return False
    return True


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Localhost:8000", "localhost"),
        ("[::1]:8000", "::1"),
        ("example.com.", "example.com"),
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
    ],
)
def test_the_name_of_a_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("bound", ["127.0.0.1", "localhost", "::1"])
def test_a_local_server_answers_to_this_machine_only(bound: str) -> None:
    hosts = AllowedHosts("", bound)
    assert all(answers(hosts, h) for h in ("localhost:1", "127.0.0.1:1", "[::1]:1"))
    assert not any(answers(hosts, h) for h in ("evil.example", "localhost.evil.example:1"))


def test_a_public_server_answers_to_any_name_until_some_are_listed() -> None:
    assert answers(AllowedHosts("", "0.0.0.0"), "evil.example")
    listed = AllowedHosts("api.example, Other.example", "0.0.0.0")
    assert answers(listed, "api.example:443") and answers(listed, "other.example")
    assert not answers(listed, "evil.example")


def test_a_star_opens_a_local_server() -> None:
    assert answers(AllowedHosts("*", "127.0.0.1"), "anything.example")
