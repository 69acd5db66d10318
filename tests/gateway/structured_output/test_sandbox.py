"""The child process that compiles grammars, and its pipes."""

from __future__ import annotations

import io
import resource

import msgspec
import pytest

from baton.net import frames
from baton.protocol import Grammar
from baton.structured_output.llguidance import Problem, problem
from baton_gateway.structured_output import sandbox
from baton_gateway.structured_output.sandbox import serve


def test_a_verdict_for_each_grammar() -> None:
    source, target = io.BytesIO(), io.BytesIO()
    for pattern in ("a+", "("):
        frames.send(source, msgspec.msgpack.encode(Grammar("regex", pattern)))
    source.seek(0)
    serve(source, target, problem)
    target.seek(0)
    first, second = frames.receive(target), frames.receive(target)
    assert first is not None and msgspec.msgpack.decode(first) is None
    assert second is not None and frames.receive(target) is None
    assert msgspec.msgpack.decode(second, type=Problem).code == "invalid_value"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    sandbox.limit()
    [most, hard] = limits[resource.RLIMIT_AS]
    assert most == hard and 2**30 < most < 2**34
    assert limits[resource.RLIMIT_CORE] == (0, 0)
