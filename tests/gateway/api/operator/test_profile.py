"""POST /start_profile and /stop_profile"""

from __future__ import annotations

import pytest

from baton.protocol import StartProfile, StopProfile
from tests.fakes.gateway_app import Site


@pytest.mark.row("F19.04")
def test_workers_are_told(own_site: Site) -> None:
    assert own_site.post("/start_profile").json() == {"status": "profiling"}
    assert own_site.post("/stop_profile").json() == {"status": "stopped"}
    assert own_site.post("/start_profile?model=nobody").status_code == 404
    assert own_site.engine.scheduler.actions == [StartProfile(), StopProfile()]
