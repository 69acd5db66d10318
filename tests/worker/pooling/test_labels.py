"""How many labels a classifier has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from baton_worker.pooling.labels import num_labels


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"id2label": SimpleNamespace(a=1, b=2, c=3)}, 3),
        ({"id2label": None, "num_labels": 5}, 5),
        ({}, 2),
    ],
)
def test_the_config_names_or_counts_them(config: dict[str, object], count: int) -> None:
    assert num_labels(SimpleNamespace(**config)) == count
