"""Penalties and bias against a transcription of their definitions, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.sampling import PARAMETERS, Entries, History, fill

VOCAB = 50


def by_definition(
    logits: list[float], prompt: list[int], log: list[int], sampling: Sampling
) -> list[float]:
    result = list(logits)
    for token in set(prompt + log):
        x = result[token]
        x = x / sampling.repetition_penalty if x > 0 else x * sampling.repetition_penalty
        count = log.count(token)
        x -= sampling.frequency_penalty * count
        x -= sampling.presence_penalty * (count > 0)
        result[token] = x
    return result


def history(cases: list[tuple[int, list[int], list[int], Sampling]]) -> History:
    """Of (row, prompt, log, sampling) each."""
    width = max(len(prompt) + len(log) for _, prompt, log, _ in cases)
    tokens = np.zeros((len(cases), width), np.int64)
    sampled = np.zeros((len(cases), width), np.float32)
    parameters = np.zeros(len(cases), PARAMETERS)
    for i, (_, prompt, log, sampling) in enumerate(cases):
        tokens[i] = prompt[0]
        tokens[i, : len(prompt) + len(log)] = prompt + log
        sampled[i, len(prompt) : len(prompt) + len(log)] = 1
        fill(parameters[i], sampling)
    return History(np.array([case[0] for case in cases]), tokens, sampled, parameters)


SETTINGS = [
    pytest.param(Sampling(9, repetition_penalty=1.3), marks=pytest.mark.row("F09.07")),
    pytest.param(Sampling(9, repetition_penalty=0.8), marks=pytest.mark.row("F09.07")),
    pytest.param(Sampling(9, frequency_penalty=0.7), marks=pytest.mark.row("F09.08")),
    pytest.param(Sampling(9, presence_penalty=-1.1), marks=pytest.mark.row("F09.09")),
    pytest.param(
        Sampling(9, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.4),
        marks=pytest.mark.row("F09.07", "F09.08", "F09.09"),
    ),
]


@pytest.mark.parametrize("sampling", SETTINGS)
def test_penalties_equal_definition(sampling: Sampling) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    cases = [
        (3, [1, 2, 3, 2], [7, 7, 1, 7, 9], sampling),
        (1, [4], [], sampling),
        (2, [5, 6], [6, 6, 11], sampling),
    ]
    penalised = logits.clone()
    history(cases).penalise(penalised)
    assert torch.equal(penalised[0], logits[0])
    for row, prompt, log, _ in cases:
        expected = by_definition(logits[row].tolist(), prompt, log, sampling)
        torch.testing.assert_close(penalised[row], torch.tensor(expected))


def test_bias_adds_and_forbids() -> None:
    logits = torch.arange(10.0).view(2, 5)
    changed = logits.clone()
    values = np.array([5.0, -np.inf, -2.0], np.float32)
    Entries(np.array([0, 1, 1]), np.array([2, 4, 0]), values).add(changed)
    expected = logits.clone()
    expected[0, 2] += 5
    expected[1, 4] = -torch.inf
    expected[1, 0] -= 2
    assert torch.equal(changed, expected)
