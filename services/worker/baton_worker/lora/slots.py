"""Adapters on the device: numbered slots, each pinned while a sequence of the batch uses it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from baton_worker.lora.store import AdapterStore
from baton_worker.lora.targets import LoraTargets

_NONE = -1


class AdapterSlots:
    """Device slots of the adapters of a batch's sequences. A slot is pinned while a sequence uses
    its adapter; unpinned slots are reused in LRU order.

    Args:
        store: the adapters that are in memory.
        targets: the layers that take them.
        max_loras: adapters on the device at a time.
        max_num_seqs: slots of the batch.
    """

    def __init__(
        self, store: AdapterStore, targets: LoraTargets, max_loras: int, max_num_seqs: int
    ) -> None:
        self._store, self._targets = store, targets
        self._held: list[bytes] = [b""] * max_loras
        self._used = np.zeros(max_loras, np.int64)
        """When each was last taken into use, counted."""
        self._clock = 0
        self._of = np.full(max_num_seqs, _NONE, np.int64)

    def enter(self, slot: int, digest: bytes) -> str:
        """Enter a sequence with an adapter, or b"" for none. Returns why it cannot run, or an empty
        string."""
        if not digest:
            return ""
        adapter = self._store.get(digest)
        if adapter is None:
            return "its adapter is not loaded here any more"
        number = self._place(digest)
        if number is None:
            return f"all {len(self._held)} places for adapters (--max-loras) are in use"
        if self._held[number] != digest:
            self._targets.put(number, adapter.pairs, adapter.wholes)
            self._held[number] = digest
        self._clock += 1
        self._used[number], self._of[slot] = self._clock, number
        return ""

    def _place(self, digest: bytes) -> int | None:
        """The slot of an adapter, or one that it can take."""
        if digest in self._held:
            return self._held.index(digest)
        free = np.setdiff1d(np.arange(len(self._held)), self._of)
        return int(free[self._used[free].argmin()]) if len(free) else None

    def release(self, slots: Iterable[int]) -> None:
        """Release these slots."""
        self._of[list(slots)] = _NONE

    def of(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the adapter of each of these slots, -1 for none: int64, as many."""
        numbers: npt.NDArray[np.int64] = self._of[slots]
        return numbers

    @property
    def in_use(self) -> set[bytes]:
        """Digests of the adapters that sequences use."""
        return {self._held[number] for number in self._of[self._of >= 0].tolist()}
