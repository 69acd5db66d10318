from __future__ import annotations

import sys

import pytest

from baton import __version__
from baton.__main__ import main, usage
from baton.settings import SERVICES


def call(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr(sys, "argv", ["baton", *argv])
    main()


def test_help_lists_every_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch)
    assert capsys.readouterr().out.strip() == usage()
    assert all(service in usage() for service in SERVICES)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    call(monkeypatch, "--version")
    assert capsys.readouterr().out == f"baton {__version__}\n"


def test_an_unknown_verb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="unknown verb 'sing'"):
        call(monkeypatch, "sing")


def test_a_verb_finds_its_module_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("baton.__main__.runpy.run_module", lambda name, **_: seen.append(name))
    call(monkeypatch, "mm-preprocess", "--help")
    call(monkeypatch, "serve")
    assert seen == ["baton_mm_preprocess", "baton_ops.serve"]
