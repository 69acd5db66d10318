"""Pages of items."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.responses.item_list import PageQuery, page_of

ITEMS = [{"id": str(number)} for number in range(5)]


@pytest.mark.parametrize(("order", "wanted"), [("asc", "01234"), ("desc", "43210")])
def test_pages_follow_each_other(order: str, wanted: str) -> None:
    seen, after = "", None
    while True:
        query = PageQuery.model_validate({"limit": "2", "order": order, "after": after})
        page = page_of(ITEMS, query)
        seen += "".join(item["id"] for item in page.data)
        assert (page.first_id, page.last_id) == (page.data[0]["id"], page.data[-1]["id"])
        if not page.has_more:
            break
        after = page.last_id
    assert seen == wanted
    assert page_of([], PageQuery()).first_id is None
    with pytest.raises(InvalidRequest, match="after"):
        page_of(ITEMS, PageQuery(after="9"))
