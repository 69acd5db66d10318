from __future__ import annotations

import gc
import signal
import subprocess
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


def test_an_unknown_verb_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, "sing")
    assert ended.value.code == 2 and "unknown verb 'sing'" in capsys.readouterr().err


def test_what_is_not_utf_8_is_refused_without_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, name in ((("serve", "--api-key=secret\udcff"), "argument 2"), ((), "BATON_MODEL")):
        monkeypatch.setenv("BATON_MODEL", "secret\udcff")
        with pytest.raises(SystemExit) as ended:
            call(monkeypatch, *argv)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"baton: {name} is not in UTF-8.\n"


def test_a_verb_finds_its_module_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service collects no garbage until all of it is imported."""
    seen = []

    def run(name: str, **_: object) -> None:
        seen.append((name, gc.isenabled()))
        gc.enable()

    monkeypatch.setattr("baton.__main__.runpy.run_module", run)
    call(monkeypatch, "mm-preprocess", "--help")
    call(monkeypatch, "serve")
    assert seen == [("baton_mm_preprocess", False), ("baton_ops.supervisor.serve", True)]


@pytest.mark.parametrize(
    ("argv", "module", "left"),
    [
        (("bench", "engine", "m.gguf"), "baton_worker.bench", ["baton bench engine", "m.gguf"]),
        (
            ("bench", "serve", "--url", "u"),
            "baton_ops.bench.serve",
            ["baton bench serve", "--url", "u"],
        ),
        (("bench", "scaling"), "baton_ops.bench.scaling", ["baton bench scaling"]),
        (("bench", "images", "m"), "baton_ops.bench.image_costs", ["baton bench images", "m"]),
        (("bench", "page"), "baton_ops.bench.page", ["baton bench page"]),
        (("bench", "m.gguf"), "baton_ops.bench.serve", ["baton bench", "m.gguf"]),
        (
            ("fleet", "role", "w", "both"),
            "baton_ops.commands.role",
            ["baton fleet role", "w", "both"],
        ),
        (("fleet", "scale", "both=2"), "baton_ops.commands.scale", ["baton fleet scale", "both=2"]),
    ],
)
def test_a_verb_of_two_words(
    argv: tuple[str, ...], module: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr("baton.__main__.runpy.run_module", lambda name, **_: seen.append(name))
    call(monkeypatch, *argv)
    assert seen == [module] and sys.argv == left


def test_a_reader_that_leaves_early_ends_a_command_without_a_traceback() -> None:
    asking = [sys.executable, "-m", "baton", "serve", "--help"]
    pipe = subprocess.PIPE
    with subprocess.Popen(asking, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 128 + signal.SIGPIPE
