"""The time of a transfer from the times of earlier ones."""

from __future__ import annotations

import pytest

from baton_scheduler.placement.transfer_cost import TransferCost


def test_before_any_transfer_a_byte_has_a_nominal_price() -> None:
    links = TransferCost()
    assert links.seconds("a", "b", 1e9) == pytest.approx(1.001)
    assert links.rate("b") == 0.0 and not list(links)


def test_on_the_same_worker_nothing_moves() -> None:
    links = TransferCost()
    links.add("a", "b", 1000, 9.0)
    assert links.seconds("a", "a", 1e9) == 0.0 == links.seconds("a", "b", 0)


def test_each_pair_has_a_pace_of_its_own_and_others_the_average() -> None:
    links = TransferCost()
    for size in (1_000, 50_000, 400_000, 1_000_000):
        links.add("a", "b", size, 0.01 + size * 1e-6)
        links.add("a", "c", size, 0.01 + size * 3e-6)
    assert links.seconds("a", "b", 100_000) == pytest.approx(0.11, rel=1e-3)
    assert links.seconds("a", "c", 100_000) == pytest.approx(0.31, rel=1e-3)
    assert links.seconds("x", "y", 100_000) == pytest.approx(0.21, rel=1e-2)
    assert links.rate("b") > 2 * links.rate("c") > 0


def test_a_transfer_of_nothing_says_nothing() -> None:
    links = TransferCost()
    before = links.layout()
    links.add("a", "b", 0, 0.5)
    assert links.layout() == before


def test_who_leaves_is_forgotten() -> None:
    links = TransferCost()
    links.add("a", "b", 1000, 1.0)
    links.add("c", "a", 1000, 1.0)
    links.add("c", "b", 1000, 1.0)
    before = links.layout()
    links.forget("a")
    assert list(links) == [("c", "b")] and links.layout() != before
