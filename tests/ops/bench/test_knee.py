"""The knee rule on curves whose knee is known."""

from __future__ import annotations

import pytest

from baton_ops.bench.knee import (
    Curve,
    changes,
    onset,
    saturation,
)

LOADS = (1, 2, 4, 8, 16)


def test_changes_are_per_doubling() -> None:
    assert changes((1, 2, 8), (8.0, 4.0, 1.0)) == pytest.approx([0.5, 0.5])
    assert changes((100, 8100), (1.0, 1.0)) == [1.0]


@pytest.mark.parametrize(
    ("costs", "knee"),
    [
        ((16.0, 8.0, 4.0, 3.5, 3.4), 4),  # twice, twice, 1.14 and 1.03 times the tokens/s
        ((16.0, 8.0, 4.0, 2.0, 1.0), None),  # the last doubling still pays
        ((16.0, 15.0, 14.0, 14.0, 14.0), 1),  # none has ever paid
        ((16.0, 8.0, 8.0, 4.0, 4.0), 8),  # what pays later was worth the flat part before it
        ((16.0, 8.0, 4.0, 3.0, 2.9), 8),  # 1.33 times
        ((16.0, 8.0, 4.0, 3.2, 3.2), 4),  # 1.25 times
        ((4.0, 8.0, 16.0, 32.0, 64.0), 1),  # it only gets worse
    ],
)
def test_load_saturates(costs: tuple[float, ...], knee: int | None) -> None:
    assert saturation(LOADS, costs) == knee


@pytest.mark.parametrize(
    ("costs", "knee"),
    [
        ((10.0, 10.5, 11.0, 12.0, 20.0), 8),
        ((10.0, 10.5, 11.0, 12.0, 13.0), None),
        ((10.0, 14.0, 20.0, 30.0, 50.0), 1),
        ((10.0, 11.0, 15.0, 15.0, 15.0), 2),
        ((10.0, 9.0, 8.0, 7.0, 6.0), None),
    ],
)
def test_context_sets_in(costs: tuple[float, ...], knee: int | None) -> None:
    assert onset(LOADS, costs) == knee


def test_a_last_level_that_is_no_doubling_is_scaled() -> None:
    """1.25 times for half of a doubling more is 1.56 times per doubling."""
    assert onset((1024, 1448), (8.0, 10.0)) == 1024
    assert onset((1024, 2048), (8.0, 10.0)) is None


def load(*costs: float) -> Curve:
    named = {"ms of the server": costs, "ms between two tokens": (1.0,) * len(costs)}
    return Curve("Load", "requests in flight", LOADS[: len(costs)], named, "rows take time")


def context(*costs: float) -> Curve:
    named = {"ms": costs}
    return Curve("Context", "tokens", (128, 256, 512), named, "attention reads keys", adds=True)


def test_a_sentence_names_knee_reason_and_costs() -> None:
    bent = load(16.0, 8.0, 4.0, 3.5, 3.25)
    assert bent.knee == 4
    assert bent.sentence == (
        "Knee at 4 (requests in flight): beyond, no doubling gives 1.3 times the tokens/s, as "
        "rows take time (ms of the server: 16 at 1, 4 at 4, 3.25 at 16)."
    )
    assert load(16.0, 15.0).sentence.endswith("(ms of the server: 16 at 1, 15 at 2).")
    assert context(10.0, 11.0, 17.0).sentence == (
        "Knee at 256 (tokens): the next doubling makes a token 1.3 times as dear, as attention "
        "reads keys (ms: 10 at 128, 11 at 256, 17 at 512)."
    )


def test_a_sentence_without_a_knee() -> None:
    assert load(16.0, 8.0).sentence == (
        "No knee up to 2 (requests in flight): the last doubling still gives 1.3 times the "
        "tokens/s (ms of the server: 16 at 1, 8 at 2)."
    )
    assert context(10.0, 11.0, 12.0).sentence == (
        "No knee up to 512 (tokens): no doubling makes a token 1.3 times as dear "
        "(ms: 10 at 128, 12 at 512)."
    )
