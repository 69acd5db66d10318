from __future__ import annotations

from dataclasses import dataclass

import pytest

from baton.errors import InvalidRequest
from baton_gateway.api.batches.pages import page
from baton_gateway.schemas.batches.files import FileQuery


@dataclass
class One:
    id: str


ITEMS = [One(name) for name in "abcd"]


def test_pages_follow_one_another() -> None:
    first, more = page(ITEMS, FileQuery(limit=3))
    assert [one.id for one in first] == ["d", "c", "b"] and more
    last, more = page(ITEMS, FileQuery(limit=3, after="b"))
    assert [one.id for one in last] == ["a"] and not more
    ordered, _ = page(ITEMS, FileQuery(order="asc"))
    assert ordered == ITEMS
    with pytest.raises(InvalidRequest, match="after"):
        page(ITEMS, FileQuery(after="z"))
