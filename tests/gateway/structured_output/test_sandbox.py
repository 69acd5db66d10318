"""The child process that compiles grammars."""

from __future__ import annotations

import resource

import msgspec
import pytest

from baton.protocol import Grammar
from baton.structured_output.llguidance import Problem
from baton_gateway.structured_output.sandbox import build


def test_a_verdict_for_each_grammar_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    handle = build(b"llguidance")
    [most, hard] = limits[resource.RLIMIT_AS]
    assert most == hard and 2**30 < most < 2**34
    good, bad = (handle(msgspec.msgpack.encode(Grammar("regex", text))) for text in ("a+", "("))
    assert msgspec.msgpack.decode(good) is None
    assert msgspec.msgpack.decode(bad, type=Problem).code == "invalid_value"
