from __future__ import annotations

from baton.net.topology import (
    CONTROL,
    LINKS,
    PAGES,
    PIXELS,
    mermaid,
)
from baton.protocol import Beat, Hello
from baton.settings import SERVICES


def test_links_join_known_services_and_greet_both_ways() -> None:
    for link in LINKS:
        if link is CONTROL:  # Between two people's tools: neither is a service.
            continue
        assert {link.server, link.client} <= set(SERVICES)
        if link in (PAGES, PIXELS):  # What tokens from elsewhere allow: the two never greet.
            continue
        for side in (link.requests, link.replies):
            assert {Hello, Beat} <= set(side)


def test_only_the_gateway_is_reached_from_outside() -> None:
    assert mermaid().count("HTTP") == 1
    # Off by default; behind it are bytes alone, each under a secret of 16 bytes.
    assert [link for link in LINKS if link.server == "gateway"] == [PIXELS]
