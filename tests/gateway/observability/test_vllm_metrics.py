"""Dashboards that are made for vLLM find their metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from baton_gateway.observability.vllm_metrics import _OLDER, _SAME
from tests.fakes.gateway_app import Site, chat, site


def samples(here: Site) -> dict[str, tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(here.get("/metrics").text)
    return {s.name: (s.labels, s.value) for family in families for s in family.samples}


def test_every_name_of_a_dashboard_is_served() -> None:
    with site(vllm_metrics=True) as here:
        here.post("/v1/chat/completions", chat())
        found = samples(here)
        families = {name.partition(":")[2] for name in found if name.startswith("vllm:")}
        for name in (*_SAME, *_OLDER.values()):
            ends = ("", "_total", "_sum")
            assert any(f"{name}{end}" in families for end in ends), name
        labels, value = found["vllm:generation_tokens_total"]
        assert labels == {"model_name": "tiny", "engine": "0"} and value == 4
        assert found["vllm:generation_tokens_total"][1] == found["baton_generation_tokens_total"][1]
        reason, value = found["vllm:request_success_total"]
        assert reason["finished_reason"] == "length" and value == 1
        bucket, _ = found["vllm:time_per_output_token_seconds_bucket"]
        assert bucket["le"] == "+Inf"
        assert found["vllm:kv_cache_usage_perc"][1] == 0.1


def test_they_are_not_served_unasked(shared_site: Site) -> None:
    assert "vllm:" not in shared_site.get("/metrics").text
