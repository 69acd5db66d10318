"""What a model recommends reaches the scheduler through every API, and responses repeat it."""

from __future__ import annotations

from baton.protocol import Submit
from tests.fakes.gateway_app import Site, chat, site, speaking
from tests.fakes.gateway_engine import MODEL

DEFAULTS = {"temperature": 0.25, "top_k": 20}
TURNS = [{"role": "user", "content": "hi"}]
BODIES = {
    "/v1/chat/completions": chat(),
    "/v1/completions": {"model": MODEL, "prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"model": MODEL, "input": "hi", "max_output_tokens": 16},
    "/v1/messages": {"model": MODEL, "messages": TURNS, "max_tokens": 4},
}


def sampled(here: Site) -> tuple[float, int]:
    """How the last request was sampled."""
    [*_, submit] = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
    return submit.sampling.temperature, submit.sampling.top_k


def test_every_api_follows_the_model_unless_the_client_says_otherwise() -> None:
    with site() as here:
        speaking(here, "Hello.", sampling_defaults=DEFAULTS)
        for path, body in BODIES.items():
            answer = here.post(path, body)
            assert answer.status_code == 200, answer.text
            assert sampled(here) == (0.25, 20), path
            assert here.post(path, body | {"temperature": 0.5}).status_code == 200
            assert sampled(here) == (0.5, 20), path
            if path == "/v1/responses":
                assert (answer.json()["temperature"], answer.json()["top_p"]) == (0.25, 1.0)
