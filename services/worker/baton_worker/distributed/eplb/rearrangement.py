"""Moves the experts of one layer to the ranks of a new placement.

    slots of rank 0   e0 e1      rank 1   e2 e3
    after             e0 e3               e2 e1
    moves             e3 from rank 1 to slot 1 of rank 0, e1 from rank 0 to slot 1 of rank 1

Weights that arrive are kept beside those in use until the last one is there. Then all ranks use the
new placement, between the same two steps.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.eplb.balanced_experts import BalancedExperts
from baton_worker.distributed.eplb.expert_transfer import receive, send
from baton_worker.distributed.eplb.placement import Held
from baton_worker.kernels.movable import Tensors


class Move(NamedTuple):
    """An expert that a rank gets from another one."""

    expert: int
    source: int
    """Rank that has it before."""
    target: int
    slot: int
    """Local index on the rank `target`."""


def moves(before: Held, after: Held) -> list[Move]:
    """The moves from one placement to another, the same list on all ranks. Of several ranks that
    have an expert the one that has sent least sends it.

    Both placements keep an expert that stays on its rank in its slot.
    """
    planned, sent = list[Move](), Counter[int]()
    for target, experts in enumerate(after):
        for slot, expert in enumerate(experts):
            if before[target][slot] == expert:
                continue
            sources = [rank for rank, some in enumerate(before) if expert in some]
            assert target not in sources, "what stays on a rank stays in its slot"
            source = min(sources, key=lambda rank: (sent[rank], rank))
            sent[source] += 1
            planned.append(Move(expert, source, target, slot))
    return planned


class Rearrangement:
    """Moves the experts of a layer; all ranks do the same at the same time."""

    def __init__(self, layer: BalancedExperts, after: Held, ranks: Communicator) -> None:
        self._layer, self._after, self._ranks = layer, after, ranks
        self._waiting = moves(layer.held, after)
        self.num_moves = len(self._waiting)
        self._arrived = dict[int, Tensors]()

    def advance(self, num_bytes: int) -> bool:
        """Move experts of about so many bytes, at least one. Returns whether that was the last one:
        then the layer uses the new placement."""
        count = max(1, num_bytes // self._layer.expert_bytes)
        for move in self._waiting[:count]:
            self._move(move)
        del self._waiting[:count]
        if self._waiting:
            return False
        for slot, tensors in self._arrived.items():
            self._layer.store.put(slot, tensors)
        self._layer.use(self._after)
        return True

    def _move(self, move: Move) -> None:
        if self._ranks.rank == move.source:
            slot = self._layer.held[move.source].index(move.expert)
            send(self._ranks, self._layer.store.expert(slot), move.target)
        elif self._ranks.rank == move.target:
            self._arrived[move.slot] = receive(self._ranks, move.source, self._layer.device)
