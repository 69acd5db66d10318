"""Derived fields of a row of sampling parameters."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol import Sampling
from baton_worker.sampling import PARAMETERS, fill


def flags(sampling: Sampling) -> set[str]:
    row = np.zeros(1, PARAMETERS)
    fill(row[0], sampling)
    names = ("greedy", "truncated", "penalised", "biased")
    return {name for name in names if row[0][name]}


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1), set()),
        (Sampling(1, temperature=0.0), {"greedy"}),
        (Sampling(1, temperature=1e-6), {"greedy"}),
        (Sampling(1, top_k=3), {"truncated"}),
        (Sampling(1, top_p=0.9), {"truncated"}),
        (Sampling(1, min_p=0.1), {"truncated"}),
        (Sampling(1, repetition_penalty=1.1), {"penalised"}),
        (Sampling(1, presence_penalty=0.1), {"penalised"}),
        (Sampling(1, frequency_penalty=-0.1), {"penalised"}),
        (Sampling(1, logit_bias={3: 1.0}), {"biased"}),
    ],
)
def test_flags(sampling: Sampling, expected: set[str]) -> None:
    assert flags(sampling) == expected


def test_seed_is_split_into_words() -> None:
    row = np.zeros(1, PARAMETERS)
    fill(row[0], Sampling(1, seed=0xFEDCBA9876543210))
    assert (row[0]["key_high"], row[0]["key_low"]) == (0xFEDCBA98, 0x76543210)


def test_min_tokens_without_stop_ids_is_off() -> None:
    row = np.zeros(1, PARAMETERS)
    fill(row[0], Sampling(1, min_tokens=5))
    assert row[0]["min_tokens"] == 0
