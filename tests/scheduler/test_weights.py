from __future__ import annotations

import pytest

from baton_scheduler.weights import parse_weights


def test_weights_are_read() -> None:
    assert parse_weights("") == {}
    assert parse_weights("a=1, b=2.5,a=b=4") == {"a": 1.0, "b": 2.5, "a=b": 4.0}


@pytest.mark.parametrize("text", ["a", "a=", "a=x", "a=0", "a=-1", "a=inf", "a=nan", "=,a=1,b"])
def test_bad_weights_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TENANT=WEIGHT"):
        parse_weights(text)
