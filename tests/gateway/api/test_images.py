"""POST /v1/images/generations"""

from __future__ import annotations

import pytest

from tests.fakes.gateway_app import Site, error_of


@pytest.mark.row("F18.21")
def test_no_image_is_generated(shared_site: Site) -> None:
    refused = shared_site.post("/v1/images/generations", {"prompt": "a baton"})
    assert refused.status_code == 501
    assert error_of(refused)["code"] == "unsupported_endpoint"
    assert "diffusion" in error_of(refused)["message"]
