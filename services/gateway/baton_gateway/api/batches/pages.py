"""Pages of lists that are short enough to be read completely."""

from __future__ import annotations

from typing import Protocol, TypeVar

from baton_gateway.http.errors import invalid
from baton_gateway.schemas.batches.files import FileQuery


class Listed(Protocol):
    """An object with an id."""

    @property
    def id(self) -> str:
        """Its id."""


T = TypeVar("T", bound=Listed)


def page(items: list[T], query: FileQuery) -> tuple[list[T], bool]:
    """Return a page of items in chronological order, and whether more follow.

    Raises `InvalidRequest` if the page begins after an unknown item.
    """
    ordered = items if query.order == "asc" else items[::-1]
    start = 0
    if query.after is not None:
        ids = [item.id for item in ordered]
        if query.after not in ids:
            raise invalid("after", "Invalid 'after': there is no such object in this list.")
        start = ids.index(query.after) + 1
    selected = ordered[start : start + query.limit]
    return selected, start + len(selected) < len(ordered)
