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
    assert parse_scores("room=0, disturb=2.5") == SCORES | {"room": 0.0, "disturb": 2.5}


@pytest.mark.parametrize("text", ["room", "room=", "room=x", "room=-1", "room=inf", "other=1"])
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="SCORE=WEIGHT, of wait"):
        parse_scores(text)
