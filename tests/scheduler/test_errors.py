"""Retry-After of errors."""

from __future__ import annotations

import pytest

from baton_scheduler import errors


@pytest.mark.parametrize(
    ("num_tokens", "rate", "seconds"),
    [(1000, 100.0, 10), (1001, 100.0, 11), (1, 100.0, 1), (0, 5.0, 1), (10**9, 1.0, 120)],
)
def test_retry_after_is_the_queue_at_the_measured_rate(
    num_tokens: int, rate: float, seconds: int
) -> None:
    assert errors.retry_after(num_tokens, rate) == seconds


def test_retry_after_without_a_measurement_is_bounded_too() -> None:
    assert 1 <= errors.retry_after(10**9, 0.0) <= 120


def test_a_refusal_carries_its_wait() -> None:
    assert errors.overloaded(3, 17).retry_after == 17
    assert errors.no_worker(3, 0.2).retry_after == 1
