"""GET /v1/models"""

from __future__ import annotations

import pytest

from tests.fakes.gateway_app import Site
from tests.fakes.gateway_engine import MAX_LENGTH, MODEL


@pytest.mark.row("F18.11")
def test_models(shared_site: Site) -> None:
    body = shared_site.get("/v1/models").json()
    assert body["object"] == "list" and len(body["data"]) == 1
    model = body["data"][0]
    assert (model["id"], model["object"]) == (MODEL, "model")
    assert (model["owned_by"], model["max_model_len"]) == ("baton", MAX_LENGTH)
    assert shared_site.get(f"/v1/models/{MODEL}").json() == model
    for path in ("/", "/v1/models", f"/v1/models/{MODEL}"):
        assert shared_site.request("HEAD", path).status_code == 200, "agents probe a server so"
