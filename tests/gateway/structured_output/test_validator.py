"""Untrusted grammars compile in a process with limits on time and memory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from baton.errors import InvalidRequest, SettingsError, Unavailable
from baton.protocol import Grammar
from baton.structured_output import engines
from baton_gateway.structured_output.request import Constraint
from baton_gateway.structured_output.validator import CHILDREN, GrammarValidator

GOOD = Constraint(Grammar("regex", "[0-9]+"), "structured_outputs.regex")
BAD = Constraint(Grammar("regex", "("), "structured_outputs.regex")
SLOW = Constraint(
    Grammar(
        "json_schema",
        json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(9000)}}),
    ),
    "response_format",
)
"""Takes seconds; requests like it are refused before they come here."""
GREEDY = Constraint(Grammar("choice", "[" + '"",' * 6_000_000 + '""]'), "guided_choice")
"""Needs more memory than a child has."""


@pytest.fixture
async def compiler() -> AsyncIterator[GrammarValidator]:
    one = GrammarValidator()
    yield one
    await one.close()


async def refused(compiler: GrammarValidator, constraint: Constraint) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        await compiler.check(constraint)
    return caught.value


async def test_good_and_bad(compiler: GrammarValidator) -> None:
    await compiler.check(GOOD)
    error = await refused(compiler, BAD)
    assert (error.status, error.code, error.param) == (
        400, "invalid_value", "structured_outputs.regex",
    )  # fmt: skip
    assert error.message == "Invalid 'structured_outputs.regex': unclosed group."
    named = Constraint(Grammar("json_schema", '{"type":"stsring"}'), "response_format", "r")
    error = await refused(compiler, named)
    assert error.message == "Invalid schema for response_format 'r': Invalid type: stsring."
    assert error.code is None


async def test_another_engine() -> None:
    compiler = GrammarValidator("xgrammar", seconds=10.0)
    await compiler.check(GOOD)
    lark = Constraint(Grammar("grammar", 'start: "a"'), "guided_grammar")
    error = await refused(compiler, lark)
    assert (error.status, error.code) == (400, "unsupported_value")
    assert "xgrammar" in error.message and "llguidance" in error.message
    for source, code in {
        'root ::= [ab] endless\nendless ::= "yx" endless': "grammar_too_complex",
        "root ::= " + '"a"? ' * 3000: "grammar_too_complex",
        "root ::= root": "invalid_value",
    }.items():
        error = await refused(compiler, Constraint(Grammar("grammar", source), "guided_grammar"))
        assert error.code == code
    await compiler.close()


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"baton-serve\[xgrammar\]"):
        GrammarValidator("xgrammar")


async def test_a_slow_compilation_is_killed_and_the_next_one_works() -> None:
    compiler = GrammarValidator(seconds=0.3)
    await compiler.check(GOOD)
    begin = time.monotonic()
    error = await refused(compiler, SLOW)
    assert error.code == "grammar_too_complex" and "0.3 s" in error.message
    assert time.monotonic() - begin < 30
    await compiler.check(Constraint(Grammar("regex", "a"), "guided_regex"))
    await compiler.close()


async def test_a_compilation_without_enough_memory_is_refused() -> None:
    compiler = GrammarValidator(seconds=60.0)
    error = await refused(compiler, GREEDY)
    assert error.code == "grammar_too_complex"
    await compiler.check(GOOD)
    await compiler.close()


async def test_verdicts_are_remembered(
    compiler: GrammarValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await compiler.check(GOOD)
    await refused(compiler, BAD)
    tried: list[Grammar] = []
    real = compiler._compile

    async def count(grammar: Grammar) -> object:
        tried.append(grammar)
        return await real(grammar)

    monkeypatch.setattr(compiler, "_compile", count)
    for _ in range(3):
        await compiler.check(GOOD)
        await refused(compiler, BAD)
    assert tried == []
    later = time.monotonic() + 61
    monkeypatch.setattr("baton_gateway.structured_output.validator.time.monotonic", lambda: later)
    await compiler.check(GOOD)
    await refused(compiler, BAD)
    assert tried == [BAD.grammar]


async def test_few_verdicts_are_remembered(
    compiler: GrammarValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_gateway.structured_output.validator._REMEMBERED", 3)
    for number in range(9):
        await compiler.check(Constraint(Grammar("regex", f"{number}"), "guided_regex"))
    assert [grammar.source for grammar in compiler._verdicts] == ["6", "7", "8"]


async def test_many_at_once_share_few_children(compiler: GrammarValidator) -> None:
    several = [Constraint(Grammar("regex", f"a{{{i}}}"), "guided_regex") for i in range(1, 30)]
    await asyncio.gather(*(compiler.check(one) for one in several))
    assert len(compiler._children._children) <= CHILDREN


async def test_a_child_that_died_meanwhile_is_replaced(compiler: GrammarValidator) -> None:
    await compiler.check(GOOD)
    (child,) = compiler._children._children
    child.kill()
    await asyncio.to_thread(child._process.wait, 20)
    await compiler.check(Constraint(Grammar("regex", "c"), "guided_regex"))
    assert compiler._children._children.isdisjoint({child})


async def test_no_child_can_be_started(
    compiler: GrammarValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.process.child_pool.sys.executable", "/bin/false")
    with pytest.raises(Unavailable, match="Try again later"):
        await compiler.check(GOOD)
    assert compiler._children._children == set()


async def test_a_cancelled_compilation_leaves_no_child_behind() -> None:
    compiler = GrammarValidator(seconds=60.0)
    await compiler.check(GOOD)
    (child,) = compiler._children._children
    task = asyncio.create_task(compiler.check(SLOW))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(child._process.wait, 20)
    await compiler.check(Constraint(Grammar("regex", "b"), "guided_regex"))
    assert compiler._children._children.isdisjoint({child})
    await compiler.close()
