"""Timelines of recent requests, found by any id of a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from baton.protocol import PhaseTimes
from baton_gateway.observability.request_timeline import RequestTimeline


class TimelineStore:
    """Timelines of the latest requests, at most `size`."""

    def __init__(self, size: int, spent: Callable[[PhaseTimes], None]) -> None:
        """`spent` receives the phase times of every choice, remembered or not."""
        self._size, self._spent = size, spent
        self._accounts: OrderedDict[str, RequestTimeline] = OrderedDict()
        self._owed: dict[int, RequestTimeline] = {}
        """Timelines by handle whose phase times are outstanding."""

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def owed(self) -> int:
        """Number of choices whose phase times are outstanding."""
        return len(self._owed)

    def keep(self, account: RequestTimeline, owner: str) -> None:
        """Store the timeline of a request; evicts the oldest when full."""
        account.owner = owner
        self._accounts[_number(account.id)] = account
        while len(self._accounts) > self._size:
            _, old = self._accounts.popitem(last=False)
            self._forget(old)

    def submitted(self, account: RequestTimeline, choices: dict[int, int]) -> None:
        """Record that choices of a request, by handle, were submitted."""
        account.submitted(choices)
        if _number(account.id) in self._accounts:
            self._owed |= dict.fromkeys(choices, account)

    def record(self, times: Iterable[tuple[int, PhaseTimes]]) -> None:
        """Record phase times reported by a scheduler."""
        for handle, spent in times:
            self._spent(spent)
            account = self._owed.pop(handle, None)
            if account is not None:
                account.estimated(handle, spent)

    def find(self, name: str, owner: str) -> RequestTimeline | None:
        """Return the timeline of a request of `owner`, by any of its ids."""
        account = self._accounts.get(_number(name))
        return account if account is not None and account.owner == owner else None

    def _forget(self, account: RequestTimeline) -> None:
        for handle in account.handles:
            self._owed.pop(handle, None)


def _number(name: str) -> str:
    """Return the part that all ids of a request share: req_0f..., chatcmpl-0f..., cmpl-0f..."""
    return name.replace("-", "_").rpartition("_")[2]
