"""All-to-all implementations for expert parallelism, under vLLM's names."""

from __future__ import annotations

from baton.registry import Registry

_HERE, _ELSEWHERE = (
    f"baton_worker.distributed.all2all.{name}" for name in ("gather_scatter", "unavailable")
)
ALL2ALL = Registry(
    "all2all",
    {
        "allgather_reducescatter": f"{_HERE}:GatherScatter",
        "naive": f"{_HERE}:Naive",
        "pplx": f"{_ELSEWHERE}:pplx",
        "deepep_high_throughput": f"{_ELSEWHERE}:deepep_high_throughput",
        "deepep_low_latency": f"{_ELSEWHERE}:deepep_low_latency",
        "mori": f"{_ELSEWHERE}:mori",
        "flashinfer_all2allv": f"{_ELSEWHERE}:flashinfer_all2allv",
    },
)
