"""Structured output: the sequences of a batch that follow a grammar, and their matcher states.

A matcher is a function of (grammar, token log): a sequence that resumes with a log, after a
preemption or the loss of its worker, has its matcher accept that log.

If only one text can follow, only the tokenizer's own spelling of it is allowed (see
`baton_worker.structured_output.jump_forward`). That too is a function of (grammar, token log),
token by token. So a sequence may append several forced tokens at once (`run`), or sample them one
by one under a mask: the log is the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from baton.logs import logger
from baton.protocol import Grammar
from baton.structured_output.llguidance import GrammarError
from baton_worker.structured_output.bitmask import Mask
from baton_worker.structured_output.jump_forward import Spelling
from baton_worker.structured_output.matcher import GrammarEngine, Matcher

_REMEMBERED = 32
"""Compiled grammars kept for the next request that has the same."""

log = logger(__name__)
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Look:
    """Allowed next tokens of one output."""

    allowed: Bits
    may_end: bool
    forced: int
    """The token that must come next, unless it is one that ends the output; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A sequence with a grammar."""

    matcher: Matcher
    spelling: Spelling | None
    """Tokenises forced text; None where every tokenisation of it is allowed."""

    def look(self) -> _Look:
        """The allowed next tokens."""
        allowed = self.matcher.allowed()
        return _Look(allowed, self.matcher.may_end, self._first(allowed))

    def next(self) -> int:
        """`_Look.forced` alone: where nothing is forced, no mask is computed to find that out."""
        if self.spelling is None or not self.matcher.forced():
            return -1
        return self._first(self.matcher.allowed())

    def after(self, token: int) -> _Place | None:
        """The place behind a token; None if it may not come next, or nothing may follow it."""
        if self.next() not in (-1, token):
            return None
        matcher = self.matcher.copy()
        if not matcher.accept((token,)) or matcher.over:
            return None
        return _Place(matcher, self.spelling)

    def _first(self, allowed: Bits) -> int:
        if self.spelling is None or not (text := self.matcher.forced()):
            return -1
        return self.spelling.first(text, allowed)


_Looks: TypeAlias = dict[tuple[int, int], _Look]
"""By slot and number of drafts before it."""


class StructuredOutputManager:
    """Matchers by slot. A background thread precomputes bitmasks between advances."""

    def __init__(
        self,
        engine: GrammarEngine | None,
        vocab_size: int,
        spelling: Spelling | None = None,
        *,
        jump_ahead: bool = True,
    ) -> None:
        self._engine, self._bytes = engine, -(-vocab_size // 8)
        self._spelling, self._jump_ahead = spelling, jump_ahead
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._places: dict[int, _Place] = {}
        self._drafts: dict[int, list[_Place]] = {}
        """By slot: the places behind each of the tokens that are drafted for it in this step."""
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._ahead: Future[_Looks] | None = None

    def fresh(self) -> StructuredOutputManager:
        """The same, with no sequence."""
        vocab_size = 8 * self._bytes
        return StructuredOutputManager(
            self._engine, vocab_size, self._spelling, jump_ahead=self._jump_ahead
        )

    def __len__(self) -> int:
        """Sequences held that follow a grammar."""
        return len(self._places)

    def prefetch_masks(self, slots: Sequence[int]) -> None:
        """Start computing the masks of these slots in the background. Optional: `mask` computes
        what is missing.
        """
        self._take()
        places_of = {(slot, 0): self._places[slot] for slot in slots if slot in self._places}
        for slot, places in self._drafts.items():
            places_of |= {(slot, n): place for n, place in enumerate(places, start=1)}
        if places_of:
            self._ahead = self._thread.submit(_look_at_all, places_of)

    def _take(self) -> _Looks:
        """Take the precomputed results. The thread uses no matcher after that."""
        ahead, self._ahead = self._ahead, None
        return ahead.result() if ahead is not None else {}

    def enter(
        self, slot: int, grammar: Grammar, tokens: Sequence[int], *, spelled: bool = True
    ) -> str:
        """Add a sequence that has produced `tokens`. Returns why it cannot run, or an empty string.

        Args:
            spelled: forced text has one spelling; False if the request restricts tokens itself.
        """
        self._take()
        if self._engine is None:
            return "this worker has no vocabulary to follow a grammar with"
        try:
            matcher = self._compile(grammar, self._engine).copy()
        except GrammarError as error:
            return f"its grammar cannot be followed: {error}"
        if not matcher.accept(tokens):
            return f"its log does not follow its grammar: {matcher.error}"
        self._places[slot] = _Place(matcher, self._spelling if spelled else None)
        return ""

    def jumps(self, slot: int) -> bool:
        """Whether `run` may have tokens for a slot, now or later."""
        place = self._places.get(slot)
        return self._jump_ahead and place is not None and place.spelling is not None

    def run(self, slot: int, stops: Collection[int], most: int) -> list[int]:
        """Go on after up to `most` forced tokens, and return them. The last token of an output, and
        those that end it, are left to `mask`."""
        self._take()
        place, tokens = self._places[slot], list[int]()
        while len(tokens) < most:
            token = place.next()
            if token < 0 or token in stops or not place.matcher.accept((token,)):
                break
            if place.matcher.over:
                place.matcher.back()
                break
            tokens.append(token)
        return tokens

    def draft(self, slot: int, tokens: Sequence[int]) -> int:
        """The number of leading tokens of these that the grammars accept with the output still
        incomplete. `mask` covers the positions behind them until the next tokens are accepted.

        Args:
            tokens: none of them a stop id.
        """
        self._take()
        self._drafts.pop(slot, None)
        place = self._places.get(slot)
        if place is None:
            return len(tokens)
        places = list[_Place]()
        for token in tokens:
            following = place.after(token)
            if following is None:
                break
            places.append(place := following)
        self._drafts[slot] = places
        return len(places)

    def extend_draft(self, slot: int, token: int) -> bool:
        """Like `draft` for one token behind those that are drafted already."""
        self._take()
        if slot not in self._places:
            return True
        drafted = self._drafts.setdefault(slot, [])
        place = drafted[-1] if drafted else self._places[slot]
        following = place.after(token)
        if following is not None:
            drafted.append(following)
        return following is not None

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone."""
        self._take()
        self._places.pop(slot, None)
        self._drafts.pop(slot, None)

    def error(self, slot: int) -> str:
        """Why nothing can follow in a slot; empty while all is well, or without a grammar."""
        self._take()
        return self._places[slot].matcher.error if slot in self._places else ""

    def mask(
        self,
        slots: Sequence[int],
        stops: npt.NDArray[np.int64],
        drafts: Sequence[int] | None = None,
    ) -> Mask | None:
        """The allowed tokens of these slots; None when none of them follows a grammar.

        Args:
            slots: [R]; a slot with drafts is listed once more for each draft, in order, unless
                `drafts` gives the number of drafts before each row.
            stops: the ids that end each of them, int64 [R, S], padded with -1: they are allowed
                where the grammar may end, and nowhere else.
        """
        rows = [row for row, slot in enumerate(slots) if slot in self._places]
        if not rows:
            return None
        if drafts is None:
            drafts = _occurrences(slots)
        looks = self._looks([(slots[row], drafts[row]) for row in rows])
        bits = np.stack([look.allowed[: self._bytes] for look in looks])
        for row, look in enumerate(looks):
            ends = stops[rows[row]]
            if look.forced >= 0 and look.forced not in ends:
                bits[row] = 0
                _mark(bits[row], np.array([look.forced]), True)
            _mark(bits[row], ends[ends >= 0], look.may_end)
        return Mask(np.array(rows, np.int64), bits)

    def _looks(self, rows: Sequence[tuple[int, int]]) -> list[_Look]:
        """The allowed next tokens of each (slot, number of drafts before)."""
        prefetched, looks = self._take(), list[_Look]()
        for slot, number in rows:
            if (look := prefetched.get((slot, number))) is None:
                look = (self._drafts[slot][number - 1] if number else self._places[slot]).look()
            looks.append(look)
        return looks

    def accept(self, slots: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Go on after each of these tokens, none of them a stop id. Returns the slots that are
        over."""
        self._take()
        over = []
        for slot, token in zip(slots, tokens, strict=True):
            self._drafts.pop(slot, None)
            place = self._places.get(slot)
            if place is None:
                continue
            matcher = place.matcher
            if not matcher.accept((token,)):
                log.warning("a grammar cannot be followed any further: %s", matcher.error)
            if matcher.over:
                over.append(slot)
        return over

    def _compile(self, grammar: Grammar, engine: GrammarEngine) -> Matcher:
        if grammar not in self._compiled:
            self._compiled[grammar] = engine.compile(grammar)
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return self._compiled[grammar]


def _occurrences(slots: Sequence[int]) -> list[int]:
    """The number of earlier occurrences of each slot."""
    counts, before = Counter[int](), list[int]()
    for slot in slots:
        before.append(counts[slot])
        counts[slot] += 1
    return before


def _look_at_all(places: dict[tuple[int, int], _Place]) -> _Looks:
    return {slot: place.look() for slot, place in places.items()}


def _mark(bits: Bits, tokens: npt.NDArray[np.int64], allowed: bool) -> None:
    """Set or clear the bits of some tokens, in place."""
    masks = np.left_shift(1, tokens & 7).astype(np.uint8)
    if allowed:
        np.bitwise_or.at(bits, tokens >> 3, masks)
    else:
        np.bitwise_and.at(bits, tokens >> 3, ~masks)
