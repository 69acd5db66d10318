"""The order of the tests that share a model and its oracle."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of one `pair` follow one another, so that it is made once: pytest sorts them by
    the place of a case in each test's own list. And they are first, for their file takes longest:
    begun last, it would leave the other processes idle."""
    numbers: dict[int, int] = {}
    for item in items:
        numbers.setdefault(id(_pair(item)), len(numbers))
    numbers[id(None)] = len(numbers)
    items.sort(key=lambda item: numbers[id(_pair(item))])


def _pair(item: pytest.Item) -> object | None:
    spec = getattr(item, "callspec", None)
    return spec.params.get("pair") if spec and item.path.name == "test_parity.py" else None
