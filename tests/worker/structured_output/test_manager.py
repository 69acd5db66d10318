"""Matchers by slot, with an engine whose grammars are words."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np
import pytest

from baton.protocol import Grammar
from baton.structured_output.llguidance import GrammarError
from baton_worker.structured_output import GRAMMARS
from baton_worker.structured_output.bitmask import Mask
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.manager import Bits, StructuredOutputManager

VOCAB = 12


class Word:
    """Exactly these tokens, and no others."""

    def __init__(self, tokens: tuple[int, ...], done: int = 0) -> None:
        self._tokens, self._done, self._error = tokens, done, ""

    @property
    def error(self) -> str:
        return self._error

    @property
    def may_end(self) -> bool:
        return self._done == len(self._tokens)

    @property
    def over(self) -> bool:
        return self.may_end and not self._error

    def copy(self) -> Word:
        return Word(self._tokens, self._done)

    def accept(self, tokens: Sequence[int]) -> bool:
        for token in tokens:
            if self.may_end or token != self._tokens[self._done]:
                self._error = f"not {token}"
                return False
            self._done += 1
        return True

    def allowed(self) -> Bits:
        bits = np.zeros(16, np.uint8)
        if not self.may_end and not self._error:
            bits[self._tokens[self._done]] = 1
        return np.packbits(bits, bitorder="little")


class Words:
    """An engine that counts."""

    def __init__(self) -> None:
        self.compiled = 0

    def compile(self, grammar: Grammar) -> Word:
        if not grammar.source.isdecimal():
            raise GrammarError("digits are wanted")
        self.compiled += 1
        return Word(tuple(map(int, grammar.source)))


def digits(text: str) -> Grammar:
    return Grammar("regex", text)


def allowed(mask: Mask) -> list[list[int]]:
    """Ids that each row may sample."""
    bits = np.unpackbits(mask.bits, axis=1, count=VOCAB, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


NO_STOPS = np.full((3, 1), -1, np.int64)


def test_masks_of_mixed_rows_and_where_they_end() -> None:
    constraints = StructuredOutputManager(Words(), VOCAB)
    assert constraints.mask([1, 2, 3], NO_STOPS) is None
    assert constraints.enter(2, digits("34"), [3]) == ""
    assert constraints.enter(3, digits("9"), []) == ""
    mask = constraints.mask([1, 2, 3], np.array([[11, 10], [4, -1], [11, -1]]))
    assert mask is not None and mask.rows.tolist() == [1, 2]
    # The next token of slot 2 is one of its stop ids: it may not end yet.
    assert allowed(mask) == [[], [9]]
    assert constraints.accept([1, 2, 3], [0, 4, 9]) == [2, 3]
    mask = constraints.mask([2], np.array([[11, -1]]))
    assert mask is not None and allowed(mask) == [[11]]
    assert len(constraints) == 2
    constraints.release(2)
    assert len(constraints) == 1
    assert constraints.mask([2], NO_STOPS[:1]) is None


def test_drafts_grow_token_by_token() -> None:
    constraints = StructuredOutputManager(Words(), VOCAB)
    assert constraints.enter(2, digits("345"), []) == ""
    assert constraints.draft(2, []) == 0
    assert constraints.extend_draft(2, 3) and not constraints.extend_draft(2, 5)
    assert constraints.extend_draft(1, 9), "it follows no grammar"
    mask = constraints.mask([1, 2], NO_STOPS[:2], [1, 1])
    assert mask is not None and mask.rows.tolist() == [1] and allowed(mask) == [[4]]
    assert constraints.extend_draft(2, 4) and not constraints.extend_draft(2, 5), "it would end"
    assert constraints.draft(2, [3, 9]) == 1
    mask = constraints.mask([2, 2], NO_STOPS[:2])
    assert mask is not None and allowed(mask) == [[3], [4]]


class Slow(Word):
    """Says when it is looked at, and waits until it may answer."""

    def __init__(self) -> None:
        super().__init__((3, 4))
        self.looked, self.go_on = Event(), Event()

    def copy(self) -> Slow:
        return self

    def allowed(self) -> Bits:
        self.looked.set()
        assert self.go_on.wait(60)
        return super().allowed()


class One:
    """An engine with one matcher."""

    def __init__(self, matcher: Word) -> None:
        self._matcher = matcher

    def compile(self, grammar: Grammar) -> Word:
        return self._matcher


def test_masks_are_foreseen_by_another_thread() -> None:
    slow = Slow()
    constraints = StructuredOutputManager(One(slow), VOCAB)
    assert constraints.enter(1, digits("34"), []) == ""
    constraints.prefetch_masks([0, 1])
    # This thread is here while the other looks.
    assert slow.looked.wait(60)
    slow.go_on.set()
    mask = constraints.mask([1], NO_STOPS[:1])
    assert mask is not None and allowed(mask) == [[3]]


def test_what_was_foreseen_is_used_once() -> None:
    constraints = StructuredOutputManager(Words(), VOCAB)
    for slot, word in enumerate(("345", "678", "9")):
        assert constraints.enter(slot, digits(word), []) == ""
    constraints.prefetch_masks([0, 1])
    mask = constraints.mask([1, 2], NO_STOPS[:2])
    assert mask is not None and allowed(mask) == [[6], [9]]
    constraints.accept([1, 2], [6, 9])
    mask = constraints.mask([0, 1], NO_STOPS[:2])
    assert mask is not None and allowed(mask) == [[3], [7]]
    # Foreseen, and then nobody sampled: what is known of slot 0 is out of date.
    constraints.prefetch_masks([0])
    constraints.accept([0], [3])
    constraints.prefetch_masks([0])
    constraints.release(0)
    assert constraints.enter(0, digits("55"), []) == ""
    mask = constraints.mask([0], NO_STOPS[:1])
    assert mask is not None and allowed(mask) == [[5]]


def test_trouble_of_the_other_thread_is_raised_here() -> None:
    class Broken(Word):
        def copy(self) -> Broken:
            return self

        def allowed(self) -> Bits:
            raise ArithmeticError("broken")

    constraints = StructuredOutputManager(One(Broken((1,))), VOCAB)
    assert constraints.enter(0, digits("1"), []) == ""
    constraints.prefetch_masks([0])
    with pytest.raises(ArithmeticError, match="broken"):
        constraints.mask([0], NO_STOPS[:1])


def test_reasons() -> None:
    assert "no vocabulary" in StructuredOutputManager(None, VOCAB).enter(0, digits("1"), [])
    constraints = StructuredOutputManager(Words(), VOCAB)
    assert "digits are wanted" in constraints.enter(0, digits("x"), [])
    assert "not 5" in constraints.enter(0, digits("1"), [5])
    assert constraints.enter(0, digits("12"), []) == ""
    assert constraints.accept([0], [7]) == []
    mask = constraints.mask([0], NO_STOPS[:1])
    assert mask is not None and allowed(mask) == [[]]


def test_a_grammar_is_compiled_once_while_it_is_remembered() -> None:
    engine = Words()
    constraints = StructuredOutputManager(engine, VOCAB)
    for slot in range(5):
        assert constraints.enter(slot, digits("12"), []) == ""
    assert engine.compiled == 1
    for number in range(100, 132):
        constraints.enter(9, digits(str(number)), [])
    constraints.enter(9, digits("12"), [])
    assert engine.compiled == 34


def test_the_registry() -> None:
    assert GRAMMARS.load("llguidance") is Guidance


def test_a_dead_end_says_why() -> None:
    constraints = StructuredOutputManager(Words(), VOCAB)
    assert constraints.enter(0, digits("12"), []) == ""
    assert constraints.error(0) == constraints.error(1) == ""
    constraints.accept([0], [5])
    assert constraints.error(0) == "not 5"
