from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.settings import SERVICES
from baton_ops.commands.keys import main, make


def test_pairs_are_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert make(folder) == list(SERVICES)
    before = (folder / "worker.key").read_text()
    assert make(folder) == []
    assert (folder / "worker.key").read_text() == before
    assert all((p.stat().st_mode & 0o077) == 0 for p in folder.iterdir())


def test_half_a_pair_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "worker.key_secret").touch()
    with pytest.raises(SettingsError, match="without its public key"):
        make(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="Cannot make --folder"):
        make(tmp_path / "file" / "keys")


def test_the_command_says_how_to_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton keys", "--folder", str(tmp_path)])
    main()
    main()
    assert "made gateway" in (said := capsys.readouterr().out)
    assert "made nothing" in said
    assert f"BATON_CURVE_KEYS_DIR={tmp_path}" in said
