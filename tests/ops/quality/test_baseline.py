"""Baselines on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton_ops.quality.baseline import Baseline


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    baseline = Baseline("nll", "en:1", "모델", {"en": 2.5})
    baseline.write(path)
    assert Baseline.read(path, "nll", "en:1") == baseline and "모델" in path.read_text("utf-8")
    with pytest.raises(SettingsError, match="is of nll en:1, not of smoke en:1"):
        Baseline.read(path, "smoke", "en:1")


def test_what_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    for text in (None, "{", "[]", '{"kind": "nll"}', '{"scores": {"en": "x"}}'):
        if text is not None:
            path.write_text(text)
        with pytest.raises(SettingsError, match="cannot be read"):
            Baseline.read(path, "nll", "en:1")
