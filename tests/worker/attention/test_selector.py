"""Choosing a backend."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton.errors import ModelError, SettingsError
from baton_worker.attention.backends import cpu
from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.backends.flex import FlexBackend
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.call_stats import CallStats
from baton_worker.attention.selector import AttentionSelector
from baton_worker.kernels.cpu import library
from baton_worker.kernels.page_layout import Layout


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where the C++ kernels cannot be had."""
    monkeypatch.setattr(cpu, "library", lambda name: None)


def test_the_first_that_does_not_refuse_is_chosen(problem: Any) -> None:
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    assert isinstance(AttentionSelector().select(problem([(1, 1)]).call), CpuBackend)


def test_one_kind_of_layer_is_asked_about_once(problem: Any) -> None:
    call = problem([(1, 1)]).call
    selector = AttentionSelector()
    assert selector.select(call) is selector.select(replace(call))
    assert AttentionSelector().select(call) is not selector.select(call), "engines share nothing"


def test_a_machine_without_a_compiler_falls_back(problem: Any, no_compiler: None) -> None:
    assert isinstance(AttentionSelector().select(problem([(1, 1)]).call), GroupedBackend)
    assert AttentionSelector().named("cpu", problem([(1, 1)]).call) is None


@pytest.mark.row("F04.07")
def test_order_and_reasons_are_logged(
    problem: Any, caplog: pytest.LogCaptureFixture, no_compiler: None
) -> None:
    with caplog.at_level(logging.INFO, "baton_worker.attention"):
        chosen = AttentionSelector().select(problem([(1, 1)], dtype=torch.float8_e4m3fn).call)
    assert isinstance(chosen, ReferenceBackend)
    said = caplog.text
    assert "attention: reference (4 query and 2 key heads of 8" in said
    first, second = said.index("cpu refused: pages of torch.float8"), said.index("grouped refused:")
    assert first < second and "grouped refused: pages of torch.float8_e4m3fn" in said


@pytest.mark.row("F04.31")
@pytest.mark.parametrize("name", ["flash_attn", "FLASH_ATTN", "flash_attn_2", "flash_attention_2"])
def test_legacy_names_are_accepted_and_mean_one_backend(problem: Any, name: str) -> None:
    call = problem([(1, 1)]).call
    with pytest.raises(ModelError, match=r"serves .*: flash_attn refused: ") as said:
        AttentionSelector(name).select(call)
    assert "grouped" not in str(said.value), "nothing else is taken in its place"


def test_a_named_backend_is_taken(problem: Any) -> None:
    call = problem([(1, 1)]).call
    for name, backend in (("sdpa", GroupedBackend), ("reference", ReferenceBackend)):
        assert isinstance(AttentionSelector(name).select(call), backend)
    chosen = AttentionSelector("sdpa")
    assert isinstance(chosen.named("grouped", call), GroupedBackend)
    assert chosen.named("reference", call) is None, "it is not to be tried"
    with pytest.raises(SettingsError, match="Unknown attention 'flash'"):
        AttentionSelector("flash")


def test_a_layout_that_a_backend_does_not_read_is_refused_with_a_sentence(
    problem: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for backend in (CpuBackend, GroupedBackend, ReferenceBackend, FlexBackend):
        monkeypatch.setattr(backend, "layouts", frozenset({Layout.NHD}))
    call = problem([(1, 1)]).call
    AttentionSelector().select(call)
    with pytest.raises(ModelError, match="reference refused: it reads nhd pages, not hnd"):
        AttentionSelector().select(replace(call, layout=Layout.HND))


def test_a_row_is_named_also_where_its_calls_are_counted(problem: Any) -> None:
    call = problem([(1, 1)]).call
    assert AttentionSelector("sdpa", CallStats()).name(call) == "grouped"
