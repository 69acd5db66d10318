from __future__ import annotations

import logging

import pytest

from baton import logs


@pytest.fixture(autouse=True)
def restore() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_names_service_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("gateway", "info")
    token = logs.request_id.set("req-1")
    logs.logger("x").info("hello")
    logs.request_id.reset(token)
    line = capsys.readouterr().err
    assert "INFO" in line and "gateway[" in line and " req-1 hello" in line


def test_what_a_client_sends_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("gateway", "info")
    logs.logger("x").info("bad\nid \x1b[31m")
    assert capsys.readouterr().err.count("\n") == 1


def test_the_level_holds(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("gateway", "warning")
    logs.logger("x").info("quiet")
    assert capsys.readouterr().err == ""
