"""Compiles grammars in child processes before they reach a worker.

Grammars are untrusted programs. A child that takes too long is killed, so a grammar that passes
compiles quickly in the worker too, where it would otherwise delay the whole batch. llguidance needs
neither torch nor the model, so the check runs beside the gateway: no other service waits for it,
and a failure becomes an HTTP status instead of a failed sequence.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict

import msgspec

from baton.errors import InvalidRequest, Unavailable
from baton.logs import logger
from baton.net import frames
from baton.protocol import Grammar
from baton.structured_output.engines import require
from baton.structured_output.llguidance import Problem
from baton_gateway.http.errors import invalid
from baton_gateway.structured_output.json_schema import invalid_schema
from baton_gateway.structured_output.request import Constraint

SECONDS = 2.0
"""Time limit of one compilation, in seconds of wall time."""
_STARTUP_SECONDS = 40.0
"""Time limit for a child to import its libraries."""
CHILDREN = 2
"""Most concurrent compilations; further ones wait."""
_REMEMBERED = 1024
"""Most cached verdicts."""
_REFUSAL_SECONDS = 60.0
"""Lifetime of a cached failure, in seconds: an overloaded machine may have caused it."""

log = logger(__name__)
_verdict: msgspec.msgpack.Decoder[Problem | None] = msgspec.msgpack.Decoder(Problem | None)


class GrammarValidator:
    """Pool of at most `CHILDREN` child processes, started on demand and reused."""

    def __init__(self, engine: str = "llguidance", seconds: float = SECONDS) -> None:
        """Raises `SettingsError` when the engine is not installed."""
        require(engine)
        self._engine, self._seconds = engine, seconds
        self._free = asyncio.Semaphore(CHILDREN)
        self._children: list[Process] = []
        self._known: OrderedDict[Grammar, tuple[Problem | None, float]] = OrderedDict()

    async def check(self, constraint: Constraint) -> None:
        """Raise `InvalidRequest` for a grammar that does not compile."""
        found = await self._ask(constraint.grammar)
        if found is not None:
            raise grammar_error(found, constraint)

    async def close(self) -> None:
        """Stop the children."""
        while self._children:
            await _kill(self._children.pop())

    async def _ask(self, grammar: Grammar) -> Problem | None:
        known = self._known.get(grammar)
        if known is None or known[1] < time.monotonic():
            async with self._free:
                found = await self._try(grammar)
            known = found, time.monotonic() + _REFUSAL_SECONDS if found else float("inf")
            self._known[grammar] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(grammar)
        return known[0]

    async def _try(self, grammar: Grammar) -> Problem | None:
        child = await self._child()
        done = False
        try:
            async with asyncio.timeout(self._seconds):
                verdict = await _exchange(child, grammar)
            done = True
        except TimeoutError:
            return Problem("grammar_too_complex", f"it takes more than {self._seconds:g} s")
        except (asyncio.IncompleteReadError, ConnectionError):
            return Problem("grammar_too_complex", "it takes more memory than is allowed")
        finally:
            # Any other exit, such as a cancellation, leaves the child in the middle of a message.
            if done:
                self._children.append(child)
            else:
                await _kill(child)
        return verdict

    async def _child(self) -> Process:
        """Return an idle living child, or start a new one."""
        while self._children:
            child = self._children.pop()
            if child.returncode is None:
                return child
        return await _start(self._engine)


async def _start(engine: str) -> Process:
    """Start a child and wait for its first reply. Raises `Unavailable` when that fails."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton_gateway.structured_output.sandbox", engine,
        stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
    )  # fmt: skip
    ready = False
    try:
        async with asyncio.timeout(_STARTUP_SECONDS):
            await _exchange(child, Grammar("json_object", ""))
        ready = True
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
        log.error("the process that tries grammars does not start: %r", error)
        raise Unavailable(
            "Structured output is not available at the moment. Try again later.", retry_after=2
        ) from error
    finally:
        if not ready:
            await _kill(child)
    return child


async def _exchange(child: Process, grammar: Grammar) -> Problem | None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(frames.pack(msgspec.msgpack.encode(grammar)))
    await child.stdin.drain()
    return _verdict.decode(await frames.receive_async(child.stdout))


async def _kill(child: Process) -> None:
    if child.returncode is None:
        child.kill()
    assert child.stdin is not None
    child.stdin.close()
    await child.wait()


def grammar_error(found: Problem, constraint: Constraint) -> InvalidRequest:
    """Error for a grammar; JSON schema errors are worded like OpenAI's and have no code."""
    param = constraint.param
    if constraint.grammar.kind == "json_schema" and found.code != "grammar_too_complex":
        return invalid_schema(param, found.message, constraint.name)
    return invalid(param, f"Invalid '{param}': {found.message}.", found.code)
