"""The registry of streaming APIs."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_gateway.api.stream_routes import ROUTES, route_of


@pytest.mark.parametrize("name", ROUTES.names())
def test_a_row_knows_its_name(name: str) -> None:
    """The journal finds the row of a stream by it."""
    assert route_of(name).name == name


def test_ids_tell_the_apis_apart() -> None:
    prefixes = [route_of(name).id_prefix for name in ROUTES.names()]
    assert len(set(prefixes)) == len(prefixes)


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(SettingsError, match="chat, completions"):
        route_of("chats")
