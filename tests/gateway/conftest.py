"""A gateway without a socket, shared by the tests of one module unless they need their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.gateway_app import Site, site


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    """For tests that leave no trace."""
    with site() as here:
        yield here


@pytest.fixture
def own_site() -> Iterator[Site]:
    """For tests that break things."""
    with site(service_wait_seconds=0.2) as here:
        yield here
