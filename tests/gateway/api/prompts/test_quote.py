"""What a request would take: estimated, and nothing runs."""

from __future__ import annotations

import msgspec

from baton.protocol import Stats
from tests.fakes import gateway_engine
from tests.fakes.gateway_app import Site, chat, completion, error_of
from tests.fakes.gateway_engine import MODEL


def report(here: Site, waiting: int) -> None:
    """The scheduler has measured its worker: 10 ms a step, 1 ms a token."""
    paced = msgspec.structs.replace(
        gateway_engine.worker(), seconds_per_step=0.01, seconds_per_token=0.001, tokens_per_step=64
    )
    known = here.engine._fleet.stats
    assert isinstance(known, Stats)
    here.engine._fleet.stats = msgspec.structs.replace(
        known, workers=(paced,), waiting=waiting, waiting_tokens=100 * waiting
    )


def test_a_quote_runs_nothing(own_site: Site) -> None:
    assert own_site.post("/v1/quote", chat()).json()["total_ms"] is None
    report(own_site, waiting=3)
    assert own_site.post("/v1/quote", chat(n=2, max_tokens=11)).json() == {
        "object": "quote",
        "model": MODEL,
        "prompt_tokens": 3,
        "max_completion_tokens": 22,
        "queue_position": 3,
        "queue_ms": 300.0,
        "prefill_ms": 13.0,
        "decode_ms": 110.0,
        "total_ms": 423.0,
    }
    several = own_site.post("/v1/quote", completion(prompt=["a", "b"])).json()
    assert several["prompt_tokens"] == 4 and several["max_completion_tokens"] == 8
    assert not own_site.engine.scheduler.seen


def test_what_would_be_refused_is_refused(shared_site: Site) -> None:
    for body, param in ((chat(n=0), "n"), (completion(max_tokens=-1), "max_tokens")):
        assert error_of(shared_site.post("/v1/quote", body))["param"] == param
    assert error_of(shared_site.post("/v1/quote", {"model": MODEL}))["param"] == "prompt"
