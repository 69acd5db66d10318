from __future__ import annotations

import inspect

import pytest

from baton import errors
from baton.errors import (
    BatonError,
    InvalidRequest,
    ModelError,
    SettingsError,
    Unavailable,
    as_value_error,
)


def test_every_error_has_a_status_type_and_is_a_baton_error() -> None:
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(cls, BatonError)
        assert 400 <= cls.status < 600 and cls.type


def test_an_instance_can_be_more_exact_than_its_class() -> None:
    error = InvalidRequest("no", code="invalid_type", param="n")
    assert (error.status, error.code, error.param, str(error)) == (400, "invalid_type", "n", "no")
    assert Unavailable("later", retry_after=3).retry_after == 3
    assert InvalidRequest.code is None


def test_a_validator_raises_what_pydantic_expects() -> None:
    with pytest.raises(ValueError, match=r"^Leave it out\.$"), as_value_error():
        raise SettingsError("Leave it out.")
    with pytest.raises(ModelError), as_value_error():
        raise ModelError("no")
