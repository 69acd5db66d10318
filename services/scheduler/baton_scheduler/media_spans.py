"""Spans of a prompt whose tokens attend to one another in both directions, as those of an image do
in Gemma 3. A step runs a span to its end, so that the KV of all its tokens exists.

    text text | image image image image | text      spans   [2, 6)
    0    1      2     3     4     5       6         a step may end before 1, 2, 6, 7, ...

A step may begin within a span, behind a cached prefix: the cached tokens were computed beside the
complete span, and the digest of the image is part of their hash.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from baton.protocol import Media


class MediaSpans:
    """The spans of all media items of a prompt."""

    def __init__(self, media: tuple[Media, ...]) -> None:
        spans = [
            (item.start + first, item.start + first + count)
            for item in media
            for first, count in item.spans
        ]
        self._firsts = [first for first, _ in spans]
        self._ends = [end for _, end in spans]
        self.longest = max((end - first for first, end in spans), default=0)
        """Tokens of the longest span."""

    def cut(self, position: int, count: int) -> int:
        """The most tokens from `position` on, up to `count`, after which a step may end."""
        end = position + count
        span = bisect_left(self._firsts, end) - 1
        if span >= 0 and end < self._ends[span]:
            return max(0, self._firsts[span] - position)
        return count

    def least(self, position: int) -> int:
        """The fewest tokens from `position` on after which a step may end."""
        span = bisect_right(self._firsts, position) - 1
        return max(1, self._ends[span] - position) if span >= 0 else 1
