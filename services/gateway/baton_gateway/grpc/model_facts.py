"""Answers routers' questions about the model and its load."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from baton import __version__
from baton.protocol import Stats
from baton_gateway.catalogue import ModelInfo


def model_info(info: ModelInfo) -> pb.GetModelInfoResponse:
    """Describe a model. Names stand where vLLM has paths: gateways have no files."""
    return pb.GetModelInfoResponse(
        model_path=info.model,
        is_generation=info.pooling is None,
        max_context_length=info.max_model_len,
        vocab_size=info.vocab_size,
        supports_vision=False,
        served_model_name=info.name,
        tokenizer_path=info.tokenizer,
        eos_token_ids=info.eos_ids,
        max_req_input_len=max(0, info.max_model_len - 1),
        default_sampling_params_json=msgspec.json.encode(dict(info.sampling_defaults)).decode(),
    )


def loads(stats: Stats | None) -> pb.GetLoadsResponse:
    """Describe the load of all workers together, as that of one rank."""
    answer = pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(), version=__version__, dp_rank_count=1
    )
    if stats is None:
        return answer
    pages = sum(worker.pages_total for worker in stats.workers)
    used = pages - sum(worker.pages_free for worker in stats.workers)
    answer.loads.append(
        pb.SchedulerLoad(
            num_running_reqs=stats.running,
            num_waiting_reqs=stats.waiting,
            num_total_reqs=stats.running + stats.waiting,
            token_usage=used / pages if pages else 0.0,
            gen_throughput=stats.tokens_per_second,
            cache_hit_rate=stats.prefix_hits / max(1, stats.prefix_queries),
            num_waiting_uncached_tokens=stats.waiting_tokens,
        )
    )
    return answer
