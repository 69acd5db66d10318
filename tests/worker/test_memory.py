"""Page counts from settings and free memory."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.memory import Budget, choose_pages

MIB = 2**20


def choose(
    max_length: int = 1000, free: int = 1000 * MIB, on_cpu: bool = True, **settings: Any
) -> Budget:
    return choose_pages(Config(page_size=10, **settings), MIB, max_length, free, on_cpu)


def test_a_share_of_free_memory() -> None:
    assert choose(memory_share=0.25) == Budget(250, 1000)


def test_a_bound_in_bytes_holds_on_a_cpu_only() -> None:
    assert choose(max_kv_bytes=120 * MIB).num_pages == 120
    assert choose(max_kv_bytes=120 * MIB, on_cpu=False).num_pages == 500
    assert choose(max_kv_bytes=0).num_pages == 500


def test_a_given_number_wins() -> None:
    assert choose(num_pages=700, memory_share=0.1).num_pages == 700


def test_never_more_than_the_rows_can_use() -> None:
    assert choose(max_rows=2).num_pages == 200


def test_few_pages_shorten_the_longest_sequence() -> None:
    assert choose(num_pages=7) == Budget(7, 70)


@pytest.mark.parametrize("settings", [{"num_pages": 2000, "max_rows": 256}, {"free": MIB}])
def test_what_does_not_fit_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="Set --num-pages"):
        choose(max_length=100_000, **settings)
