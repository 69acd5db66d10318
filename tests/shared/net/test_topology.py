from __future__ import annotations

from baton.net.topology import (
    CONTROL,
    LINKS,
    PAGES,
    mermaid,
)
from baton.protocol import Beat, Hello
from baton.settings import SERVICES


def test_links_join_known_services_and_greet_both_ways() -> None:
    for link in LINKS:
        if link is CONTROL:  # Between two people's tools: neither is a service.
            continue
        assert {link.server, link.client} <= set(SERVICES)
        if link is PAGES:  # A transfer that is granted elsewhere: the two never greet.
            continue
        for side in (link.requests, link.replies):
            assert {Hello, Beat} <= set(side)


def test_only_the_gateway_is_reached_from_outside() -> None:
    assert mermaid().count("HTTP") == 1
    assert "gateway" not in {link.server for link in LINKS}
