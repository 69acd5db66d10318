"""`baton serve` says what is wrong with its flags, and ends with a code that tells it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from baton.process.lifecycle import EXIT_SETTINGS
from baton_ops.supervisor import serve


@pytest.mark.parametrize("flags", [["--worker.max-num-seqs", "0"], ["m.gguf", "--workers", "0"]])
def test_a_bad_setting_is_said_and_ends_it(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton serve", *flags, "--port", "0"])
    monkeypatch.setattr(serve, "resolve", lambda config: config.model)
    monkeypatch.setattr(serve.PreloadedInterpreter, "fork", lambda: Mock())
    with pytest.raises(SystemExit) as ended:
        serve.main()
    assert ended.value.code == EXIT_SETTINGS
    assert "workers" in capsys.readouterr().err or "max-num-seqs" in flags[0]
