"""The window over the use of experts, against counting by hand."""

from __future__ import annotations

import random

import pytest
import torch

from baton_worker.layers.moe.expert_load import ExpertLoad


@pytest.mark.row("F06.29")
@pytest.mark.parametrize("window", [1, 3, 10])
def test_counts_are_those_of_the_last_steps(window: int) -> None:
    load, history = ExpertLoad([4, 6], window), list[list[list[int]]]()
    random.seed(window)
    for _ in range(12):
        step = [[0] * 4, [0] * 6]
        for layer, size in ((0, 4), (1, 6), (1, 6)):  # a layer may run twice in a step
            experts = [[random.randrange(-1, size + 1) for _ in range(2)] for _ in range(5)]
            load.record(layer, torch.tensor(experts))
            for expert in (e for row in experts for e in row if 0 <= e < size):
                step[layer][expert] += 1
        load.close_step()
        history.append(step)
        recent = history[-window:]
        for layer in range(2):
            expected = [sum(column) for column in zip(*(s[layer] for s in recent), strict=True)]
            assert load.counts(layer).tolist() == expected
            mean = sum(expected) / len(expected)
            assert load.balancedness()[layer] == pytest.approx(mean / max(expected))


@pytest.mark.row("F06.29")
def test_uneven_layers_are_found_and_recover() -> None:
    load = ExpertLoad([4, 4, 4], window=2)
    even, one = torch.arange(4)[:, None], torch.zeros(4, 1, dtype=torch.int64)
    load.record(0, even)
    load.record(1, one)
    load.close_step()
    assert load.balancedness() == [1.0, 0.25, 1.0] and load.uneven() == [1]
    for _ in range(2):
        load.record(1, even)
        load.close_step()
    assert load.uneven() == []


@pytest.mark.row("F06.29")
def test_a_report_comes_once_per_window() -> None:
    load = ExpertLoad([2], window=3)
    reports = []
    for _ in range(6):
        load.record(0, torch.tensor([[0], [0], [0], [1]]))
        load.close_step()
        reports.append(load.report())
    assert [bool(report) for report in reports] == [False, False, True] * 2
    assert reports[2].startswith("experts: balancedness 0.67 over 3 steps")
