"""Processors: each sees its own rows once, and the one that is shipped keeps its promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.sampling import logits_processors
from baton_worker.sampling.logits_processors import no_repeat_ngram, parse, process

pytestmark = pytest.mark.row("F09.15")


def forbidden_by_definition(log: list[int], size: int) -> set[int]:
    """Ids after which some n-gram of the log would stand there twice."""
    grams = {tuple(log[i : i + size]) for i in range(len(log) - size + 1)}
    return {
        t for t in range(5) if len(log) >= size - 1 and (*log[len(log) - size + 1 :], t) in grams
    }


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_repeat_ngram_equals_definition(size: int) -> None:
    generator = np.random.default_rng(size)
    logs = [generator.integers(0, 5, n).astype(np.int32) for n in range(30)]
    logits = torch.zeros(len(logs), 5)
    no_repeat_ngram(logits, logs, [{"size": size}] * len(logs))
    for row, log in zip(logits, logs, strict=True):
        found = set(torch.isinf(row).nonzero()[:, 0].tolist())
        assert found == forbidden_by_definition(log.tolist(), size)


def test_a_processor_is_called_once_with_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, list[Any]]] = []

    def record(logits: Tensor, logs: Any, arguments: Any) -> None:
        calls.append((len(logits), list(arguments)))
        logits += 1

    monkeypatch.setattr(logits_processors, "no_repeat_ngram", record)
    logits, log = torch.zeros(4, 3), np.zeros(0, np.int32)
    names = [{"no_repeat_ngram": 1}, {}, {"no_repeat_ngram": 2}]
    process(logits, names, [log] * 3, [0, 2, 3])
    assert calls == [(2, [1, 2])]
    assert logits[:, 0].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_arguments_are_json_and_names_are_known() -> None:
    assert parse({"no_repeat_ngram": '{"size":3}'}) == {"no_repeat_ngram": {"size": 3}}
    with pytest.raises(SettingsError, match="no_repeat_ngram"):
        parse({"no_repeat_bigram": "{}"})
