"""What the programs of `tools/` refuse ends with exit code 2 and one sentence."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from tools.arguments import existing_path, new_folder, positive_int
from tools.make_random_gguf import main


def test_arguments(tmp_path: Path) -> None:
    assert existing_path(str(tmp_path)) == tmp_path and positive_int("12") == 12
    with pytest.raises(ArgumentTypeError, match="does not exist"):
        existing_path(str(tmp_path / "none"))
    assert new_folder(str(tmp_path)) == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentTypeError, match="is no folder"):
        new_folder(str(tmp_path / "file"))
    for text in ("0", "-1", "1.5", "x", "²", ""):
        with pytest.raises(ArgumentTypeError, match="is not a positive integer"):
            positive_int(text)


def test_a_file_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(b"x" * 100)
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path / "text"), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("error: GGUF magic invalid\n")
