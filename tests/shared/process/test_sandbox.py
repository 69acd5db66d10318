"""The child's side of the pipe."""

from __future__ import annotations

import io
import resource

import pytest

from baton.net import frames
from baton.process import sandbox
from baton.process.sandbox import Handler


def stream_of(*requests: bytes) -> io.BytesIO:
    return io.BytesIO(b"".join(map(frames.pack, requests)))


def build(setup: bytes) -> Handler:
    return lambda request: setup + request


def test_a_setup_is_confirmed_and_each_request_answered() -> None:
    target = io.BytesIO()
    sandbox.serve(stream_of(b"a", b"1", b"2"), target, build)
    assert target.getvalue() == b"".join(map(frames.pack, (b"", b"a1", b"a2")))


def test_a_parent_that_is_gone_is_the_end() -> None:
    target = io.BytesIO()
    sandbox.serve(io.BytesIO(b"\5\0\0\0set"), target, build)
    assert target.getvalue() == b""


def test_the_limits_count_from_now(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    sandbox.limit_memory(2**30)
    [most, hard] = limits[resource.RLIMIT_AS]
    assert most == hard and 2**30 < most < 2**36
    assert limits[resource.RLIMIT_CORE] == (0, 0)
