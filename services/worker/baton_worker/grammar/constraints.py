"""The sequences of a batch that follow a grammar, and where each stands in it.

A matcher is a function of (grammar, token log): a sequence that enters with a log, after a
preemption or the loss of its worker, has its matcher accept that log and goes on as if nothing
had happened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from baton.grammar import GrammarError
from baton.logs import logger
from baton.protocol import Grammar
from baton_worker.grammar.mask import Mask

_REMEMBERED = 32
"""Compiled grammars kept for the next request that has the same."""

log = logger(__name__)
Bits = npt.NDArray[np.uint8]


class Matcher(Protocol):
    """Where one output stands in its grammar."""

    @property
    def error(self) -> str:
        """Why nothing can follow; empty while all is well."""

    @property
    def may_end(self) -> bool:
        """The output so far is complete."""

    @property
    def over(self) -> bool:
        """The output is complete, and nothing can follow."""

    def copy(self) -> Matcher:
        """One that goes on from here on its own."""

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on after these. False when the grammar does not allow them."""

    def allowed(self) -> Bits:
        """One bit per token or more, the least significant first."""


class Engine(Protocol):
    """What a name in `GRAMMARS` stands for; built with the vocabulary."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of the output. Raises `GrammarError`."""


class Constraints:
    """Matchers by slot."""

    def __init__(self, engine: Engine | None, vocab_size: int) -> None:
        self._engine, self._vocab_size = engine, vocab_size
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._matchers: dict[int, Matcher] = {}

    def __len__(self) -> int:
        """Sequences held that follow a grammar."""
        return len(self._matchers)

    def enter(self, slot: int, grammar: Grammar, tokens: Sequence[int]) -> str:
        """Take in a sequence that has produced `tokens`. Returns why it cannot, or nothing."""
        if self._engine is None:
            return "this worker has no vocabulary to follow a grammar with"
        try:
            matcher = self._compile(grammar, self._engine).copy()
        except GrammarError as error:
            return f"its grammar cannot be followed: {error}"
        if not matcher.accept(tokens):
            return f"its log does not follow its grammar: {matcher.error}"
        self._matchers[slot] = matcher
        return ""

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone."""
        self._matchers.pop(slot, None)

    def mask(self, slots: Sequence[int], stops: npt.NDArray[np.int64]) -> Mask | None:
        """What these slots may sample; None when none of them follows a grammar.

        Args:
            slots: [R].
            stops: the ids that end each of them, int64 [R, S], padded with -1: they are allowed
                where the grammar may end, and nowhere else.
        """
        rows = [row for row, slot in enumerate(slots) if slot in self._matchers]
        if not rows:
            return None
        matchers = [self._matchers[slots[row]] for row in rows]
        bits = np.stack([matcher.allowed() for matcher in matchers])
        allowed = np.unpackbits(bits, axis=1, count=self._vocab_size, bitorder="little") > 0
        row, column = np.nonzero(stops[rows] >= 0)
        may_end = np.array([matcher.may_end for matcher in matchers])
        allowed[row, stops[rows][row, column]] = may_end[row]
        return Mask(np.array(rows, np.int64), allowed)

    def accept(self, slots: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Go on after one token each, none of them a stop id. Returns the slots that are over."""
        over = []
        for slot, token in zip(slots, tokens, strict=True):
            matcher = self._matchers.get(slot)
            if matcher is None:
                continue
            if not matcher.accept((token,)):
                log.warning("a grammar cannot be followed any further: %s", matcher.error)
            if matcher.over:
                over.append(slot)
        return over

    def _compile(self, grammar: Grammar, engine: Engine) -> Matcher:
        if grammar not in self._compiled:
            self._compiled[grammar] = engine.compile(grammar)
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar]
