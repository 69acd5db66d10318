from __future__ import annotations

import inspect

from baton import errors
from baton.errors import BatonError, InvalidRequest, Unavailable


def test_every_error_has_a_status_type_and_is_a_baton_error() -> None:
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(cls, BatonError)
        assert 400 <= cls.status < 600 and cls.type


def test_an_instance_can_be_more_exact_than_its_class() -> None:
    error = InvalidRequest("no", code="invalid_type", param="n")
    assert (error.status, error.code, error.param, str(error)) == (400, "invalid_type", "n", "no")
    assert Unavailable("later", retry_after=3).retry_after == 3
    assert InvalidRequest.code is None
