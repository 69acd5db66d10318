"""Without keys, what changes the system for everybody is for programs of its own machine."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from baton.errors import InvalidRequest
from baton_gateway.access.api_keys import ApiKey
from baton_gateway.http.operator_routes import check_operator


def refused(path: str, client: str | None, **headers: str) -> bool:
    scope = {"path": path, "client": client and (client, 1)}
    named = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    try:
        check_operator(scope, named, ApiKey(), keys_in_use=False)
    except InvalidRequest as error:
        assert (error.status, error.code) == (403, "operator_only")
        return True
    return False


def test_programs_of_this_machine_may() -> None:
    for client in ("127.0.0.1", "::1"):
        assert not refused("/reset_prefix_cache", client)


@pytest.mark.parametrize("client", ["10.0.0.5", "172.17.0.1", "", None])
def test_others_may_read_only(client: str | None) -> None:
    assert refused("/reset_prefix_cache", client)
    assert not refused("/metrics", client)


@pytest.mark.parametrize("header", ["origin", "sec_fetch_site", "x_forwarded_for", "forwarded"])
def test_neither_a_browser_nor_a_proxy_is_a_program_of_this_machine(header: str) -> None:
    assert refused("/reset_prefix_cache", "127.0.0.1", **{header: "same-origin"})
    assert not refused("/fleet", "127.0.0.1", **{header: "same-origin"})
