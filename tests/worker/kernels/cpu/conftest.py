"""Products at every level of instructions."""

from __future__ import annotations

import ctypes

import pytest

from baton_worker.kernels import cpu
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.level import LEVELS, Level
from baton_worker.machine import instructions


@pytest.fixture(params=LEVELS, ids=lambda level: level.name)
def at_every_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Level:
    """A CPU with more instructions runs the kernels of the older ones too."""
    level: Level = request.param
    if not level.needs <= instructions():
        pytest.skip(f"this CPU has no {level.name}")
    library("linear")
    assert cpu._builder is not None
    older = ctypes.CDLL(str(cpu._builder.library("linear", level)))
    monkeypatch.setattr("baton_worker.kernels.cpu.linear.library", lambda name: older)
    return level
