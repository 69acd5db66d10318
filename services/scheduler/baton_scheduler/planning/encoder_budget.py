"""Encoder budget: how many embeddings of media one step may encode.

    prompt   text | image 1 | text | image 2 | text       budget for one image
    step 1   [----------------------]                     ends before the second image
    step 2                           [--------------]

An image is encoded in the step that runs its first token, and every row of that step waits for it.
A step that has encoded nothing yet accepts an image of any size, so no image starves.
"""

from __future__ import annotations

from baton_scheduler.block_hashes import media_key
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.worker import Worker


class EncoderBudget:
    """The budget of one step of a worker.

    Args:
        num_tokens: embeddings that the step may encode.
    """

    def __init__(self, worker: Worker, num_tokens: int) -> None:
        self._worker, self._remaining, self._unused = worker, num_tokens, True

    def cut(self, sequence: Sequence, start: int, count: int) -> int:
        """The most tokens from `start` on, up to `count`, whose media this step may encode; their
        media are charged to the budget. 0 if none can run."""
        for item in sequence.submit.media:
            if item.start >= start + count:
                break
            key = media_key(sequence.submit, item.digest, sequence.weights)
            if item.is_embeds or not item.is_needed(start) or self._worker.has_media(key):
                continue
            if not self._take(item.num_encoded):
                return max(0, item.start - start)
            self._worker.remember_media(key)
        return count

    def _take(self, num_tokens: int) -> bool:
        if num_tokens > self._remaining and not self._unused:
            return False
        self._remaining, self._unused = self._remaining - num_tokens, False
        return True
