"""Acceptance of drafts by the length of their match."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.speculative.match_acceptance import MatchAcceptance


def rate(acceptance: MatchAcceptance, length: int) -> float:
    return float(acceptance.rates(np.array([length]), 1)[0, 0])


@pytest.mark.row("F08.12")
def test_drafts_of_long_matches_are_believed_and_each_makes_the_match_longer() -> None:
    acceptance = MatchAcceptance()
    rates = acceptance.rates(np.array([2, 5, 32, 900]), 4)
    assert rates.shape == (4, 4) and ((rates > 0.4) & (rates < 1)).all()
    assert (np.diff(rates, axis=0) >= 0).all() and (np.diff(rates, axis=1) >= 0).all()
    assert rates[0, 3] == rates[1, 0] and acceptance.best == rates.max()


def test_what_was_verified_counts_for_the_lengths_that_it_was_of() -> None:
    acceptance = MatchAcceptance()
    before = rate(acceptance, 8)
    for _ in range(50):
        acceptance.observe(2, drafted=3, accepted=0)
    assert rate(acceptance, 2) < 0.1 and rate(acceptance, 8) == before
    for _ in range(50):
        acceptance.observe(8, drafted=2, accepted=2)
    assert rate(acceptance, 8) > 0.9 and rate(acceptance, 9) > 0.9 and rate(acceptance, 2) < 0.1


def test_lengths_whose_drafts_were_rejected_are_tried_again() -> None:
    acceptance = MatchAcceptance()
    before = rate(acceptance, 3)
    for _ in range(50):
        acceptance.observe(3, drafted=1, accepted=0)
    for _ in range(2000):
        acceptance.rest(3)
    assert rate(acceptance, 3) == pytest.approx(before, abs=0.01)
