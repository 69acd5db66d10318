"""Timelines of recent requests, found by any id of a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from baton.protocol import PhaseTimes
from baton_gateway.observability.request_timeline import RequestTimeline


class TimelineStore:
    """Timelines of the latest requests, at most `size`."""

    def __init__(self, size: int, observe: Callable[[PhaseTimes], None]) -> None:
        """`observe` receives the phase times of every choice, stored or not."""
        self._size, self._observe = size, observe
        self._timelines: OrderedDict[str, RequestTimeline] = OrderedDict()
        self._outstanding: dict[int, RequestTimeline] = {}
        """Timelines by handle whose phase times are outstanding."""

    def __len__(self) -> int:
        return len(self._timelines)

    @property
    def num_outstanding(self) -> int:
        """Number of choices whose phase times are outstanding."""
        return len(self._outstanding)

    def keep(self, timeline: RequestTimeline, owner: str) -> None:
        """Store the timeline of a request; evicts the oldest when full."""
        timeline.owner = owner
        self._timelines[_number(timeline.id)] = timeline
        while len(self._timelines) > self._size:
            _, old = self._timelines.popitem(last=False)
            self._forget(old)

    def submitted(self, timeline: RequestTimeline, choices: dict[int, int]) -> None:
        """Record that choices of a request, by handle, were submitted."""
        timeline.submitted(choices)
        if _number(timeline.id) in self._timelines:
            self._outstanding |= dict.fromkeys(choices, timeline)

    def record(self, times: Iterable[tuple[int, PhaseTimes]]) -> None:
        """Record phase times reported by a scheduler."""
        for handle, phases in times:
            self._observe(phases)
            timeline = self._outstanding.pop(handle, None)
            if timeline is not None:
                timeline.estimated(handle, phases)

    def find(self, name: str, owner: str) -> RequestTimeline | None:
        """Return the timeline of a request of `owner`, by any of its ids."""
        timeline = self._timelines.get(_number(name))
        return timeline if timeline is not None and timeline.owner == owner else None

    def _forget(self, timeline: RequestTimeline) -> None:
        for handle in timeline.handles:
            self._outstanding.pop(handle, None)


def _number(name: str) -> str:
    """Return the part that all ids of a request share: req_0f..., chatcmpl-0f..., cmpl-0f..."""
    return name.replace("-", "_").rpartition("_")[2]
