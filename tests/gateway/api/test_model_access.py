"""Which model a request may use."""

from __future__ import annotations

import pytest

from tests.fakes.gateway_app import Site, error_of
from tests.fakes.gateway_engine import MODEL


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_another_model_is_not_found(shared_site: Site, path: str) -> None:
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    if path == "/tokenize":
        del body["messages"]
    response = shared_site.post(path, body | {"model": "another"})
    assert response.status_code == 404 and error_of(response)["code"] == "model_not_found"
    assert shared_site.post(path, body | {"model": MODEL}).status_code == 200
