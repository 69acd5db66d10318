"""One page of a list of items."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.responses.include_query import IncludeQuery


class PageQuery(IncludeQuery):
    """Query of a list."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    """Id of the last item of the page before."""


class ItemList(msgspec.Struct, kw_only=True):
    """A page of items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, items: list[dict[str, Any]], *, has_more: bool = False) -> ItemList:
        """Create a page of these items."""
        ids = [item["id"] for item in items]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return cls(data=items, first_id=first, last_id=last, has_more=has_more)


def page_of(items: list[dict[str, Any]], query: PageQuery) -> ItemList:
    """Return a page of items, which are in the order of time. Raises `InvalidRequest`."""
    ordered = items if query.order == "asc" else items[::-1]
    start = 0
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        if query.after not in ids:
            raise invalid("after", "Invalid 'after': there is no such item in this list.")
        start = ids.index(query.after) + 1
    page = ordered[start : start + query.limit]
    return ItemList.of(page, has_more=start + len(page) < len(ordered))
