"""POST /sleep and /wake_up, GET /is_sleeping"""

from __future__ import annotations

import pytest

from baton.protocol import Sleep, WakeUp
from tests.fakes.gateway_app import Site, error_of

pytestmark = pytest.mark.row("F19.05", "F19.06")


def test_a_model_sleeps_and_wakes_up(own_site: Site) -> None:
    assert own_site.get("/is_sleeping").json() == {"is_sleeping": False}
    assert own_site.post("/sleep?level=2").json() == {"is_sleeping": True}
    assert own_site.get("/is_sleeping").json() == {"is_sleeping": True}
    assert own_site.post("/wake_up").json() == {"is_sleeping": False}
    assert own_site.get("/is_sleeping").json() == {"is_sleeping": False}
    own_site.post("/sleep")
    assert own_site.post("/wake_up?tags=weights").json() == {"is_sleeping": True}
    assert own_site.post("/wake_up?tags=kv_cache").json() == {"is_sleeping": False}
    own_site.post("/wake_up?tags=weights&tags=kv_cache")
    parts = [WakeUp(("weights",)), WakeUp(("kv_cache",)), WakeUp()]
    assert own_site.engine.scheduler.actions == [Sleep(2), WakeUp(), Sleep(1), *parts]


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/sleep?level=3", 400, "level"),
        ("/wake_up?tags=weights&tags=all", 400, "tags"),
        ("/sleep?model=nobody", 404, "model"),
    ],
)
def test_what_has_no_meaning_is_refused(own_site: Site, path: str, status: int, param: str) -> None:
    refused = own_site.post(path)
    assert (refused.status_code, error_of(refused)["param"]) == (status, param)
    assert own_site.engine.scheduler.actions == []
