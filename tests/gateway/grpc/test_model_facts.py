"""What routers ask about the model and its load."""

from __future__ import annotations

from baton.protocol import Stats
from baton_gateway.catalogue import ModelInfo
from baton_gateway.grpc.model_facts import loads, model_info
from tests.fakes.gateway_engine import MODEL, worker


def test_a_model_is_described() -> None:
    facts = ModelInfo(MODEL, 512, 260, (257,), sampling_defaults={"top_k": 5}, model=MODEL)
    told = model_info(facts)
    assert (told.served_model_name, told.max_context_length, told.vocab_size) == (MODEL, 512, 260)
    assert told.is_generation and list(told.eos_token_ids) == [257]
    assert told.default_sampling_params_json == '{"top_k":5}'


def test_the_load_is_that_of_all_workers() -> None:
    assert not loads(None).loads
    stats = Stats(
        1, waiting=2, waiting_tokens=30, running=3, preemptions=0, finished=0, tokens=0,
        tokens_per_second=4.0, uptime=1.0, workers=(worker(), worker()),
        prefix_queries=10, prefix_hits=5,
    )  # fmt: skip
    [load] = loads(stats).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (3, 2, 5)
    assert (load.num_waiting_uncached_tokens, load.gen_throughput) == (30, 4.0)
    assert load.cache_hit_rate == 0.5 and 0 <= load.token_usage < 1
