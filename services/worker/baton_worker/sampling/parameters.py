"""The sampling parameters of many sequences as parallel columns."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from baton.protocol import Sampling

PARAMETERS = np.dtype(
    [
        ("temperature", "f8"),
        ("top_p", "f8"),
        ("min_p", "f8"),
        ("typical_p", "f8"),
        ("repetition", "f8"),
        ("presence", "f8"),
        ("frequency", "f8"),
        ("key_low", "i8"),
        ("key_high", "i8"),
        ("top_k", "i8"),
        ("min_tokens", "i8"),
        ("logprobs", "i8"),
        ("prompt_logprobs", "i8"),
        ("greedy", "?"),
        ("truncated", "?"),
        ("penalised", "?"),
        ("biased", "?"),
        ("typical", "?"),
        ("restricted", "?"),
    ]
)
"""One row: the fixed-size fields of `Sampling` and values derived from them."""

Parameters: TypeAlias = npt.NDArray[Any]
"""[R] of `PARAMETERS`."""

_COLDEST = 1e-5
"""Temperatures below this are greedy: dividing by them leaves one token with all probability."""


def fill(row: Any, sampling: Sampling) -> None:
    """Write one sequence's parameters into `row`, an element view of `Parameters`."""
    row["temperature"] = sampling.temperature
    row["top_p"], row["min_p"], row["top_k"] = sampling.top_p, sampling.min_p, sampling.top_k
    row["typical_p"] = sampling.typical_p
    row["repetition"] = sampling.repetition_penalty
    row["presence"] = sampling.presence_penalty
    row["frequency"] = sampling.frequency_penalty
    row["key_low"] = sampling.seed & 0xFFFFFFFF
    row["key_high"] = sampling.seed >> 32 & 0xFFFFFFFF
    row["min_tokens"] = sampling.min_tokens if sampling.stop_ids else 0
    row["logprobs"], row["prompt_logprobs"] = sampling.logprobs, sampling.prompt_logprobs
    row["greedy"] = sampling.temperature < _COLDEST
    row["typical"] = sampling.typical_p < 1
    row["truncated"] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    row["penalised"] = (
        sampling.repetition_penalty != 1
        or sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
    )
    row["biased"] = bool(sampling.logit_bias)
    row["restricted"] = bool(
        sampling.allowed_ids or sampling.bad_words or sampling.processors or sampling.grammar
    )
