"""The child process that matches patterns."""

from __future__ import annotations

import resource

import msgspec
import pytest

from baton_worker.lora.pattern_sandbox import MEMORY, build


def test_the_first_match_of_each_module_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    handle = build(b"")
    assert limits[resource.RLIMIT_AS][0] > MEMORY

    def answer(*patterns: str) -> object:
        return msgspec.msgpack.decode(
            handle(msgspec.msgpack.encode((patterns, ["a.b.up", "up", "cup"])))
        )

    assert answer("b", r"b\.up", "up", ".*") == [1, 2, 3]
    assert answer("x") == [None, None, None]
    assert "unterminated" in str(answer("up", "("))
