"""The generated pages hold every declared setting, and `--check` notices when they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest

from baton.registry import Registry
from baton.settings import Settings, config_classes, variables
from baton_ops.commands import settings
from baton_ops.commands.settings import (
    Pages,
    env_example,
    markdown,
    rows,
)


class Sample(Settings, prefix="sample"):
    """One setting of each kind."""

    flavour: Annotated[str, Registry("flavour", {"sweet": "a:b", "sour": "c:d"})] = "sweet"
    """Taste."""
    folder: Path | None = None
    """Where."""
    level: Literal["low", "high"] = "low"
    """How much."""
    quiet: bool = True
    """Say nothing."""
    share: float
    """Part of the whole."""


def test_rows_give_flag_variable_choices_and_default() -> None:
    found = {row.variable: row for row in rows(Sample)}
    assert found["BATON_SAMPLE_FLAVOUR"].kind == "sweet | sour"
    assert found["BATON_SAMPLE_FOLDER"].kind == "path | none"
    assert found["BATON_SAMPLE_FOLDER"].default == ""
    assert found["BATON_SAMPLE_LEVEL"].kind == "low | high"
    assert found["BATON_SAMPLE_QUIET"].flag == "--quiet / --no-quiet"
    assert found["BATON_SAMPLE_QUIET"].default == "true"
    assert found["BATON_SAMPLE_SHARE"].default == "required"
    assert found["BATON_SAMPLE_SHARE"].text == "Part of the whole."


def test_every_setting_of_every_service_is_on_both_pages_and_explained() -> None:
    page, example = markdown(), env_example()
    for cls in (Settings, *config_classes().values()):
        for name, variable in variables(cls):
            assert f"`{variable}`" in page
            assert f"\n# {variable}=" in example
            assert cls.model_fields[name].description, f"{variable} has no docstring"


def test_no_page_depends_on_this_machine() -> None:
    assert str(Path.home()) not in markdown() + env_example()


def test_check_notices_a_stale_page_and_write_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    folder = tmp_path / "ops"
    (folder / "baton_ops").mkdir(parents=True)
    monkeypatch.setattr(settings, "FOLDER", folder)
    assert run("--check") == 1
    assert "env.example is stale: run `baton settings --write`" in capsys.readouterr().err
    assert run("--write") == 0
    assert run("--check") == 0
    (folder / "env.example").write_text("old")
    assert run("--check") == 1


def test_write_refuses_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["baton settings", "--write"])
    with pytest.raises(SystemExit) as ended:
        settings.main()
    assert ended.value.code == 2 and "checkout" in capsys.readouterr().err


def test_without_a_flag_the_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "scheduler" in capsys.readouterr().out


def run(*argv: str) -> int:
    return settings._run(Pages.load(argv))
