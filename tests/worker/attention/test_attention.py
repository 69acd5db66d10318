"""Choosing a backend."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention import BACKENDS, choose, cpu
from baton_worker.attention.cpu import CpuBackend
from baton_worker.attention.grouped import GroupedBackend
from baton_worker.attention.reference import ReferenceBackend
from baton_worker.kernels.cpu import library


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    choose.cache_clear()
    yield
    choose.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where the C++ kernels cannot be had."""
    monkeypatch.setattr(cpu, "library", lambda name: None)


def test_the_first_that_does_not_refuse_is_chosen(problem: Any) -> None:
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    assert isinstance(choose(problem([(1, 1)]).call), CpuBackend)


def test_one_kind_of_layer_is_asked_about_once(problem: Any) -> None:
    call = problem([(1, 1)]).call
    assert choose(call) is choose(replace(call))


def test_a_machine_without_a_compiler_falls_back(problem: Any, no_compiler: None) -> None:
    assert isinstance(choose(problem([(1, 1)]).call), GroupedBackend)


@pytest.mark.row("F04.07")
def test_order_and_reasons_are_logged(
    problem: Any, caplog: pytest.LogCaptureFixture, no_compiler: None
) -> None:
    with caplog.at_level(logging.INFO, "baton_worker.attention"):
        chosen = choose(problem([(1, 1)], dtype=torch.float8_e4m3fn).call)
    assert isinstance(chosen, ReferenceBackend)
    said = caplog.text
    assert "attention: reference (4 query and 2 key heads of 8" in said
    first, second = said.index("cpu refused: pages of torch.float8"), said.index("grouped refused:")
    assert first < second and "grouped refused: pages of torch.float8_e4m3fn" in said


def test_every_entry_imports() -> None:
    for name in BACKENDS.names():
        assert callable(BACKENDS.load(name)().plan)
