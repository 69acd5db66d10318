"""GET /server_info"""

from __future__ import annotations

import pytest

from baton import __version__
from baton_gateway.api.operator.server_info import HIDDEN, shown
from baton_gateway.config import Config
from tests.fakes.gateway_app import Site, site


@pytest.mark.row("F19.08")
def test_version_settings_and_workers(shared_site: Site) -> None:
    body = shared_site.get("/server_info").json()
    assert body["version"] == __version__
    assert set(body["config"]) == set(Config.model_fields)
    assert body["config"]["port"] == Config().port
    assert body["workers"] == shared_site.get("/fleet").json()["workers"]


def test_secrets_are_hidden_and_clients_do_not_read_it() -> None:
    given = {"api_key": "sk-12345678", "admin_api_key": "sk-operator-1", "reasoning_key": "r" * 16}
    config = Config(**given, redis_url="redis://:password@host")
    assert {name: shown(config)[name] for name in (*given, "redis_url")} == dict.fromkeys(
        (*given, "redis_url"), HIDDEN
    )
    assert not any(secret in repr(shown(config)) for secret in (*given.values(), "password"))
    with site(api_key="sk-12345678", admin_api_key="sk-operator-1") as here:
        keys = ("sk-12345678", "sk-operator-1")
        headers = [{"authorization": f"Bearer {key}"} for key in keys]
        found = [here.get("/server_info", headers=header).status_code for header in headers]
        assert found == [403, 200]
