"""Choosing a backend."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, choose
from baton_worker.attention.grouped import GroupedBackend
from baton_worker.attention.reference import ReferenceBackend


def test_the_first_that_does_not_refuse_is_chosen(problem: Any) -> None:
    assert isinstance(choose(problem([(1, 1)]).call), GroupedBackend)


def test_a_refusal_is_logged_with_its_reason(
    problem: Any, caplog: pytest.LogCaptureFixture
) -> None:
    choose.cache_clear()
    with caplog.at_level(logging.INFO, "baton_worker.attention"):
        chosen = choose(problem([(1, 1)], dtype=torch.float8_e4m3fn).call)
    assert isinstance(chosen, ReferenceBackend)
    assert "grouped refused: pages of torch.float8_e4m3fn" in caplog.text


def test_every_entry_imports() -> None:
    for name in BACKENDS.names():
        assert callable(BACKENDS.load(name)().plan)
