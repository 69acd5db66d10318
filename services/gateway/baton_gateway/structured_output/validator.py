"""Compiles grammars in child processes before they reach a worker.

Grammars are untrusted programs. A child that takes too long is killed, so a grammar that passes
compiles quickly in the worker too, where it would otherwise delay the whole batch. llguidance needs
neither torch nor the model, so this check runs in the gateway: no other service waits for it, and a
failure becomes an HTTP status instead of a failed sequence.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

import msgspec

from baton.errors import InvalidRequest
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout
from baton.protocol import Grammar
from baton.structured_output.engines import require
from baton.structured_output.llguidance import Problem
from baton_gateway.http.errors import invalid
from baton_gateway.structured_output.json_schema import invalid_schema
from baton_gateway.structured_output.request import Constraint

_MODULE = "baton_gateway.structured_output.sandbox"
SECONDS = 2.0
"""Time limit of one compilation, in seconds of processor time."""
CHILDREN = 2
"""Most concurrent compilations; further ones wait."""
_REMEMBERED = 1024
"""Most cached verdicts."""
_REFUSAL_SECONDS = 60.0
"""Lifetime of a cached failure, in seconds: an overloaded machine may have caused it."""

_verdict: msgspec.msgpack.Decoder[Problem | None] = msgspec.msgpack.Decoder(Problem | None)


class GrammarValidator:
    """Compiles in at most `CHILDREN` child processes and caches the verdicts."""

    def __init__(self, engine: str = "llguidance", seconds: float = SECONDS) -> None:
        """Raises `SettingsError` when the engine is not installed."""
        require(engine)
        self._seconds = seconds
        self._children = ChildPool(_MODULE, engine.encode(), CHILDREN, "Structured output")
        self._verdicts: OrderedDict[Grammar, tuple[Problem | None, float]] = OrderedDict()

    async def check(self, constraint: Constraint) -> None:
        """Raise `InvalidRequest` for a grammar that does not compile."""
        problem = await self._cached_verdict(constraint.grammar)
        if problem is not None:
            raise grammar_error(problem, constraint)

    async def close(self) -> None:
        """Stop the children."""
        await asyncio.to_thread(self._children.close)

    async def _cached_verdict(self, grammar: Grammar) -> Problem | None:
        cached = self._verdicts.get(grammar)
        if cached is None or cached[1] < time.monotonic():
            problem = await self._compile(grammar)
            cached = problem, time.monotonic() + _REFUSAL_SECONDS if problem else float("inf")
            self._verdicts[grammar] = cached
            if len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(grammar)
        return cached[0]

    async def _compile(self, grammar: Grammar) -> Problem | None:
        try:
            verdict = await self._children.call(msgspec.msgpack.encode(grammar), self._seconds)
        except ChildTimeout:
            return Problem("grammar_too_complex", f"it takes more than {self._seconds:g} s")
        except ChildDied:
            return Problem("grammar_too_complex", "it takes more memory than is allowed")
        return _verdict.decode(verdict)


def grammar_error(problem: Problem, constraint: Constraint) -> InvalidRequest:
    """Error for a grammar; JSON schema errors are worded like OpenAI's and have no code."""
    param = constraint.param
    if constraint.grammar.kind == "json_schema" and problem.code != "grammar_too_complex":
        return invalid_schema(param, problem.message, constraint.name)
    return invalid(param, f"Invalid '{param}': {problem.message}.", problem.code)
