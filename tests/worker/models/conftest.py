"""The order of the tests that share a model and its oracle."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of one `pair` follow one another, so that it is made once. pytest sorts them by
    the place of a case in each test's own list instead."""
    places = {n: id(pair) for n, item in enumerate(items) if (pair := _pair(item)) is not None}
    first = {pair: n for n, pair in reversed(places.items())}
    ordered = sorted(places, key=lambda n: first[places[n]])
    for place, item in zip(places, [items[n] for n in ordered], strict=True):
        items[place] = item


def _pair(item: pytest.Item) -> object | None:
    spec = getattr(item, "callspec", None)
    return spec.params.get("pair") if spec and item.path.name == "test_parity.py" else None
