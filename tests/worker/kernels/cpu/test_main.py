"""The command that builds ahead and measures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.kernels.cpu import __main__ as command
from baton_worker.kernels.cpu import bench
from baton_worker.kernels.cpu.build import Builder, names
from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel
from baton_worker.kernels.cpu.linear import CpuLinear


def test_the_table_has_a_line_per_form(monkeypatch: pytest.MonkeyPatch) -> None:
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    monkeypatch.setattr(bench, "LAYERS", 1)
    monkeypatch.setattr(bench, "_REPEATS", 1)
    monkeypatch.setattr(bench, "_ROWS", (2,))
    lines = list(bench.lines(torch.float32))
    assert {"baton", "int8", "int4_minimum"} <= {line[2] for line in lines}
    assert all(line[:2] == ("float32", "2") and float(line[4]) > 0 for line in lines)
    assert lines[0][-1] == "1.00"


def test_native_is_the_level_that_works_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(builder: Builder, name: str, level: IsaLevel) -> Path:
        return Path(f"{name}-{level.name}")

    monkeypatch.setattr(Builder, "library", built)
    for level in (LEVELS[1], None):
        monkeypatch.setattr(command, "supported_level", lambda _, level=level: level)
        assert command.main(["--native"]) == 0
        expected = [f"{name}-{level.name}" for name in names()] if level else []
        assert capsys.readouterr().out.split() == expected
    assert command.main([]) == 0
    assert len(capsys.readouterr().out.split()) == len(names()) * len(LEVELS)


def test_misuse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--fast"]) == 2
    assert "usage" in capsys.readouterr().err


def test_no_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_WORKER_CXX", "no-such-compiler")
    monkeypatch.setattr(command, "SHIPPED", tmp_path)
    monkeypatch.setattr("baton_worker.kernels.cpu.build.SHIPPED", tmp_path)
    assert command.main([]) == 1
    assert "no-such-compiler" in capsys.readouterr().err
