"""The help of `baton serve` by group."""

from __future__ import annotations

import pytest

from baton_ops.supervisor.options import serve_config


@pytest.mark.parametrize(("flag", "advanced"), [("--help", False), ("--help-all", True)])
def test_advanced_settings_are_shown_when_asked_for(
    flag: str, advanced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        serve_config().load([flag])
    text = capsys.readouterr().out
    assert "\nmemory:\n" in text and text.count("  --max-num-batched-tokens N\n") == 1
    assert ("--kv-cache-layout {auto,nhd,hnd} (advanced)" in text) is advanced
