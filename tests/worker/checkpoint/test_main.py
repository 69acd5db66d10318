"""`python -m baton_worker.checkpoint PATH`."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.checkpoint.__main__ import main
from tests.support import tiny_models


def test_prints_the_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_models.tiny_config("Qwen3ForCausalLM").save_pretrained(tmp_path)
    assert main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in (
        "Qwen3ForCausalLM",
        "layers 0-2",
        "qk_norm=QkNorm(norm=Norm(eps=1e-06))",
        "attention by",
    ):
        assert part in printed


def test_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "no config.json" in capsys.readouterr().err


def test_what_has_no_spec_may_run_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_models.tiny_config(tiny_models.EXAMPLE_UNLISTED).save_pretrained(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert "would run in the slower code of transformers" in capsys.readouterr().out


def test_a_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main([str(tmp_path / "config.json")]) == 1
    assert "Point --model at a checkpoint folder" in capsys.readouterr().err


def test_wants_one_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
