"""The package's face."""

from __future__ import annotations

import pytest

from baton_worker import models


def test_everything_promised_is_there() -> None:
    for name in models.__all__:
        assert getattr(models, name) is not None


def test_nothing_else_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_pickle'"):
        models.load_pickle  # noqa: B018
