"""Beam search on fixed logits, compared with exhaustive search."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Literal

import pytest

from baton_gateway.generation.beam_search import Beam, BeamSearch, alternatives
from baton_gateway.generation.output import TokenLogprob
from baton_gateway.generation.request import BeamSearchOptions

pytestmark = pytest.mark.row("F09.11")
VOCAB, END = 4, 0


class Model:
    """Random log-probabilities for every context."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def next(self, tokens: tuple[int, ...]) -> list[float]:
        random = Random(f"{self._seed}{tokens}")
        values = [random.gauss(0, 2) for _ in range(VOCAB)]
        total = math.log(sum(map(math.exp, values)))
        return [value - total for value in values]

    def describe(self, tokens: tuple[int, ...], count: int) -> TokenLogprob:
        values = self.next(tokens)
        order = sorted(range(VOCAB), key=lambda token: -values[token])[:count]
        return TokenLogprob(
            order[0], values[order[0]], 1, tuple((token, values[token]) for token in order)
        )


def run(search: BeamSearch, model: Model) -> int:
    """Search to the end. Returns how many steps it took."""
    steps = 0
    while not search.finished:
        search.advance([model.describe(b.tokens, search.alternatives) for b in search.running])
        steps += 1
    return steps


def everything(model: Model, length: int, penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every output, best first: it ends with the end, or at the greatest length."""
    found = []
    for n in range(1, length + 1):
        for tokens in product(range(VOCAB), repeat=n):
            if END not in tokens[:-1] and (tokens[-1] == END or n == length):
                total = sum(model.next(tokens[:i])[token] for i, token in enumerate(tokens))
                found.append((total / n**penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(10))
def test_wide_enough_it_finds_the_best_of_all(seed: int, penalty: float) -> None:
    model = Model(seed)
    # 27 prefixes without an end and 37 outputs exist: nothing is ever dropped.
    search = BeamSearch(BeamSearchOptions(64, penalty, "never"), frozenset({END}), 4)
    run(search, model)
    wanted = everything(model, 4, penalty)
    found = search.best(5)
    assert [beam.tokens for beam in found] == [tokens for _, tokens in wanted[:5]]
    assert [beam.score for beam in found] == pytest.approx([score for score, _ in wanted[:5]])
    for beam in found:
        assert beam.reason == ("stop" if beam.tokens[-1] == END else "length")
        assert beam.total == pytest.approx(sum(entry.logprob for entry in beam.logprobs))


def test_one_beam_is_greedy() -> None:
    for seed in range(10):
        model, tokens = Model(seed), ()
        while len(tokens) < 6 and END not in tokens:
            tokens = (*tokens, model.describe(tokens, 1).token)
        search = BeamSearch(BeamSearchOptions(1), frozenset({END}), 6)
        run(search, model)
        (beam,) = search.best(1)
        assert beam.tokens == tokens
        assert [entry.rank for entry in beam.logprobs] == [1] * len(tokens)


def test_a_length_penalty_prefers_length() -> None:
    def length(penalty: float) -> float:
        lengths = []
        for seed in range(40):
            search = BeamSearch(BeamSearchOptions(4, penalty), frozenset({END}), 8)
            run(search, Model(seed))
            lengths.append(len(search.best(1)[0].tokens))
        return sum(lengths)

    assert length(-2.0) < length(0.0) < length(2.0)


def test_when_it_stops() -> None:
    """All three agree on what ends where; they differ in how long they look for better."""
    order: list[bool | Literal["never"]] = [True, False, "never"]
    longer = [0, 0]
    for seed in range(60):
        steps, scores = [], []
        for early in order:
            search = BeamSearch(BeamSearchOptions(3, 1.0, early), frozenset({END}), 10)
            steps.append(run(search, Model(seed)))
            scores.append([beam.score for beam in search.best(3)])
        assert steps == sorted(steps) and scores == sorted(scores)
        longer = [longer[i] + (steps[i + 1] > steps[i]) for i in (0, 1)]
    assert min(longer) > 0


def test_an_end_below_the_best_has_not_ended() -> None:
    """Of four alternatives only the best two may end; the others are there to go on with."""
    search = BeamSearch(BeamSearchOptions(2), frozenset({END}), 5)
    top = ((1, -0.1), (2, -0.2), (END, -0.3), (3, -4.0))
    search.advance([TokenLogprob(1, -0.1, 1, top)])
    assert search.best(2) == [] and [b.tokens for b in search.running] == [(1,), (2,)]


def test_enough_alternatives_for_any_number_of_ends() -> None:
    assert [alternatives(3, stops) for stops in (0, 1, 2)] == [6, 6, 9]
    search = BeamSearch(BeamSearchOptions(2), frozenset({0, 1, 2}), 5)
    assert search.alternatives == 8 and search.running == [Beam()] and not search.finished


def test_without_ends_it_runs_to_the_greatest_length() -> None:
    search = BeamSearch(BeamSearchOptions(3), frozenset(), 4)
    assert run(search, Model(3)) == 4
    assert [(len(b.tokens), b.reason) for b in search.best(3)] == [(4, "length")] * 3
