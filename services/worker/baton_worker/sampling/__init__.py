"""Logits to tokens: bias, penalties, truncation, counter-based sampling, log-probabilities."""

from __future__ import annotations

from baton_worker.sampling.logprobs import concatenate, describe
from baton_worker.sampling.parameters import PARAMETERS, Parameters, fill
from baton_worker.sampling.penalties import Entries, History
from baton_worker.sampling.sampler import Adjustments, Sampler, device_columns, truncations
from baton_worker.sampling.token_rules import TokenRule, TokenRules

__all__ = [
    "PARAMETERS",
    "Adjustments",
    "Entries",
    "History",
    "Parameters",
    "Sampler",
    "TokenRule",
    "TokenRules",
    "concatenate",
    "describe",
    "device_columns",
    "fill",
    "truncations",
]
