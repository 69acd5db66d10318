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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BACKENDS.names())
def test_pages_before_the_window_may_be_replaced_by_the_first_within(
    problem: Any, name: str, dtype: torch.dtype
) -> None:
    """To the last bit, for decode rows and chunks, and whatever is in the pages by then."""
    rows, size = [(1, 300), (20, 150), (1, 70), (3, 9)], 4
    task = problem(rows, window=13, page_size=size, dtype=dtype)
    backend = BACKENDS.load(name)()
    if (reason := backend.refuses(task.call)) is not None:
        pytest.skip(f"{name}: {reason}")
    whole = backend.forward(backend.plan(task.batch, task.call), task.query, task.pages)
    table, pages = task.batch.page_table.clone(), task.pages.clone()
    for row, (_, start) in enumerate(rows):
        first = max(0, start - 13) // size
        pages[table[row, :first].long()] = torch.nan
        table[row, :first] = table[row, first]
    batch = replace(task.batch, page_table=table)
    left = backend.forward(backend.plan(batch, task.call), task.query, pages)
    assert pages.isnan().any() and whole.isfinite().all()
    assert torch.equal(left, whole)
