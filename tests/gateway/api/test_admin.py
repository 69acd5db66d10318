"""GET /version and /metrics, POST /reset_prefix_cache"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton import __version__
from baton_gateway.access.api_keys import OPERATOR_CHANGES, OPERATOR_READS
from tests.fakes.gateway_app import Site, error_of, site


@pytest.mark.row("F19.02")
def test_version(shared_site: Site) -> None:
    assert shared_site.get("/version").json() == {"version": __version__}


@pytest.mark.row("F19.03")
def test_metrics(own_site: Site) -> None:
    own_site.run(lambda: asyncio.sleep(0.2))
    own_site.chat(n=2)
    own_site.chat(model="other")
    own_site.get("/nowhere")
    response = own_site.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(response.text)
        for s in family.samples
    }
    assert samples["baton_requests_total", "/v1/chat/completions", "200"] == 1
    assert samples["baton_requests_total", "/v1/chat/completions", "404"] == 1
    assert samples["baton_requests_total", "unknown", "404"] == 1
    assert samples["baton_time_to_first_token_seconds_count",] == 1
    assert samples["baton_inter_token_latency_seconds_count",] == 6
    assert samples["baton_e2e_request_latency_seconds_count",] == 1
    assert samples["baton_request_prompt_tokens_sum",] == 3
    assert samples["baton_request_generation_tokens_sum",] == 8
    assert samples["baton_generation_tokens_total",] == 8
    assert samples["baton_gateway_requests",] == 0
    assert samples["baton_worker_kv_pages_total", "worker-1"] == 100
    assert samples["baton_worker_kv_pages_free", "worker-1"] == 90
    assert samples["baton_workers", "ready"] == 1 and samples["baton_workers", "hung"] == 0
    assert samples["baton_num_preemptions_total",] == 3
    assert samples["baton_spec_decode_num_drafts_total",] == 5
    assert samples["baton_spec_decode_num_draft_tokens_total",] == 20
    assert samples["baton_spec_decode_num_accepted_tokens_total",] == 6
    assert samples["baton_spec_decode_num_accepted_tokens_per_pos_total", "1"] == 2
    assert samples["baton_num_requests_waiting",] == 0
    assert samples["baton_prefix_cache_queries_total",] == 40
    assert samples["baton_prefix_cache_hits_total",] == 30
    assert samples["baton_worker_kv_pages_cached", "worker-1"] == 0


def test_metrics_switched_off() -> None:
    with site(metrics=False) as here:
        assert here.get("/metrics").status_code == 404


@pytest.mark.row("F12.12", "F19.07")
def test_the_prefix_cache_is_reset(own_site: Site) -> None:
    response = own_site.post("/reset_prefix_cache")
    assert (response.status_code, response.json()) == (200, {"pages": 7})


def test_a_reset_that_nobody_answers_is_a_503() -> None:
    with site(service_wait_seconds=0.1) as here:
        here.chat()
        here.engine.scheduler.silent = True
        response = here.post("/reset_prefix_cache")
        assert (response.status_code, error_of(response)["code"]) == (503, "server_is_overloaded")


ROUTES = [("GET", p) for p in sorted(OPERATOR_READS)] + [("POST", p) for p in OPERATOR_CHANGES]


def test_where_keys_are_in_use_the_operators_routes_need_an_operators_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\nname = "a"\nkey = "ordinary-1"\n'
        '[[key]]\nname = "b"\nkey = "operator-1"\noperator = true\n'
    )
    with site(api_key="one", admin_api_key="root", api_key_file=keys) as here:
        for method, path in ROUTES:
            assert here.request(method, path).status_code == 401
            for key in ("one", "ordinary-1"):
                response = here.request(method, path, headers={"authorization": f"Bearer {key}"})
                assert (response.status_code, error_of(response)["code"]) == (403, "operator_only")
        for key in ("root", "operator-1"):
            headers = {"authorization": f"Bearer {key}", "origin": "http://else.example"}
            assert here.get("/metrics", headers=headers).status_code == 200
            assert here.post("/reset_prefix_cache", headers=headers).status_code == 200


def test_an_operators_key_alone_closes_the_operators_routes_only() -> None:
    with site(admin_api_key="root") as here:
        assert [here.request(*route).status_code for route in ROUTES] == [401] * len(ROUTES)
        headers = {"authorization": "Bearer root"}
        assert here.post("/reset_prefix_cache", headers=headers).status_code == 200
        assert here.chat().status_code == 200
