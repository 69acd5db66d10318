from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_scheduler.placement.placement import Placement, Score
from baton_scheduler.placement.policies import PLACEMENTS, SCORES, parse_scores


def test_every_policy_is_a_kind_of_placement() -> None:
    assert PLACEMENTS.names()[0] == "cost"
    assert all(issubclass(PLACEMENTS.load(name), Placement) for name in PLACEMENTS.names())
    with pytest.raises(SettingsError, match="Did you mean 'round-robin'"):
        PLACEMENTS.check("roundrobin")


def test_every_score_has_a_weight() -> None:
    assert tuple(SCORES) == Score._fields
    assert parse_scores("") == SCORES
    assert parse_scores("eviction=0, interference=2.5") == SCORES | {
        "eviction": 0.0,
        "interference": 2.5,
    }


@pytest.mark.parametrize(
    "text", ["eviction", "eviction=", "eviction=x", "eviction=-1", "eviction=inf", "other=1"]
)
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SCORE=WEIGHT, of wait"):
        parse_scores(text)
