"""Divides the cores, GPUs and memory of this machine among workers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

from baton.process import nvidia

_KINDS = ("TENSOR", "PIPELINE")
"""Parallelism within a worker."""
_MEMORY = "BATON_WORKER_GPU_MEMORY_UTILIZATION"
_SHARE_OF_HOST, _SHARE_OF_GPU = 0.5, 0.9
"""Default share of free memory that a worker uses for KV pages; see `engine.memory`."""


def flags(variables: Mapping[str, str], count: int, place: int | None) -> list[str]:
    """Default flags of one of several workers, for settings that the operator has not set.

    Args:
        variables: the environment of the workers.
        count: workers on this machine.
        place: its index among them, from 0; None if it finds its GPUs itself.
    """
    return [word for pair in _flags(variables, count, place) for word in pair]


def on_cpu(variables: Mapping[str, str]) -> bool:
    """Whether each worker is one process that runs on the CPU."""
    return ranks(variables) == 1 and _usable(variables) == 0


def keepers(variables: Mapping[str, str]) -> list[int]:
    """Numbers of the GPUs whose memory a keeper process holds."""
    return list(range(_usable(variables)))


def _flags(
    variables: Mapping[str, str], count: int, place: int | None
) -> Iterator[tuple[str, str]]:
    if count > 1 and "BATON_WORKER_THREADS" not in variables:
        yield "--threads", str(max(1, len(os.sched_getaffinity(0)) // count))
    beside = _on_one_device(variables, count)
    if beside > 1 and _MEMORY not in variables:
        share = _SHARE_OF_GPU if _usable(variables) else _SHARE_OF_HOST
        yield "--gpu-memory-utilization", str(round(share / beside, 3))
    if place is not None and (numbers := _gpus(variables, place)):
        yield "--gpu", ",".join(map(str, numbers))


def _gpus(variables: Mapping[str, str], place: int) -> list[int]:
    """The worker's own GPUs, consecutive; starts over if there are too few."""
    have, size = _usable(variables), ranks(variables)
    if have < 2 or size > have or "BATON_WORKER_GPU" in variables:
        return []
    first = place * size % (have - have % size)
    return list(range(first, first + size))


def _on_one_device(variables: Mapping[str, str], count: int) -> int:
    """Number of workers that share a device."""
    have, size = _usable(variables), ranks(variables)
    return -(-count // (have // size)) if have >= size else count


def _usable(variables: Mapping[str, str]) -> int:
    """GPUs that workers would use."""
    if variables.get("BATON_WORKER_DEVICE") == "cpu":
        return 0
    named = variables.get("CUDA_VISIBLE_DEVICES")
    return nvidia.count() if named is None else len([n for n in named.split(",") if n.strip()])


def ranks(variables: Mapping[str, str]) -> int:
    """Processes of each worker."""
    sizes = (variables.get(f"BATON_WORKER_{kind}_PARALLEL_SIZE", "1") for kind in _KINDS)
    return math.prod(map(int, sizes))
