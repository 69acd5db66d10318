from __future__ import annotations

import re

from tests.fakes.gateway_app import Site, error_of, site


def test_the_page_loads_everything_from_here(shared_site: Site) -> None:
    page = shared_site.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    wanted = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(wanted) == 4
    for path in wanted:
        assert shared_site.get(f"/{path}").status_code == 200, path
    assert error_of(shared_site.get("/docs/other.js"))["message"] == "There is no such file."


def test_the_operator_may_serve_no_documents() -> None:
    """X09"""
    with site(disable_fastapi_docs=True) as here:
        for path in ("/docs", "/openapi.json", "/docs/docs.js"):
            assert here.get(path).status_code == 404


def test_documents_need_a_key_where_keys_are_in_use() -> None:
    """X09"""
    with site(api_key="sk-12345678") as here:
        assert here.get("/docs").status_code == here.get("/openapi.json").status_code == 401
        key = {"authorization": "Bearer sk-12345678"}
        assert here.get("/openapi.json", headers=key).status_code == 200
