"""Placement of experts and replicas by their load: DeepSeek's EPLB (DeepSeek-V3, arXiv:2412.19437,
section 3.4), its global policy.

    loads        e0 60   e1 20   e2 10   e3 10                   2 ranks of 3 slots
    replicate    e0 30   e0 30   e1 10   e1 10   e2 10   e3 10   at most one on each rank
    pack         e0 e1 e2 | e0 e1 e3                             the heaviest first, where least is

Expert groups are on one machine, so the hierarchical policy, which keeps groups of experts on one
node, does not apply. All functions are pure, and ties go to the lowest number: every rank computes
the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

Held: TypeAlias = tuple[tuple[int, ...], ...]
"""By rank the experts of its slots, see `ExpertMap.held`."""
_WORTH = 0.95
"""Load of the busiest rank, of what it was, for which experts move."""


def rebalance(loads: Sequence[int], current: Held) -> Held:
    """A placement with the slots of `current` for loads [num_experts]: one whose busiest rank has
    clearly less load, or `current` if there is none. An expert that stays on its rank stays in its
    slot."""
    size, slots = len(current), len(current[0])
    packed = _packed(loads, _replicas(loads, size * slots, size), size, slots)
    candidate = _settled(packed, current)
    return candidate if heaviest(loads, candidate) < _WORTH * heaviest(loads, current) else current


def rank_loads(loads: Sequence[int], held: Held) -> list[float]:
    """Tokens of each rank if the replicas of an expert have an equal share of its load."""
    replicas = Counter(expert for experts in held for expert in experts)
    return [sum(loads[expert] / replicas[expert] for expert in experts) for experts in held]


def heaviest(loads: Sequence[int], held: Held) -> float:
    """Tokens of the busiest rank."""
    return max(rank_loads(loads, held))


def _replicas(loads: Sequence[int], num_slots: int, most: int) -> list[int]:
    """Replicas of each expert, at least 1 and at most `most`: one more for the expert whose
    replicas have most, until all slots are taken."""
    replicas = [1] * len(loads)
    for _ in range(num_slots - len(loads)):
        able = (expert for expert in range(len(loads)) if replicas[expert] < most)
        replicas[max(able, key=lambda expert: loads[expert] / replicas[expert])] += 1
    return replicas


def _packed(
    loads: Sequence[int], replicas: Sequence[int], size: int, slots: int
) -> list[list[int]]:
    """`slots` experts for each of `size` packs, none of which has one twice."""
    each = [load / count for load, count in zip(loads, replicas, strict=True)]
    packs, weights = [list[int]() for _ in range(size)], [0.0] * size
    for expert in sorted(range(len(each)), key=lambda expert: -each[expert]):
        for _ in range(replicas[expert]):
            open_packs = [pack for pack in range(size) if len(packs[pack]) < slots]
            able = [pack for pack in open_packs if expert not in packs[pack]]
            if not able:
                _make_room(expert, packs, weights, each, open_packs[0])
                continue
            lightest = min(able, key=lambda pack: weights[pack])
            packs[lightest].append(expert)
            weights[lightest] += each[expert]
    return packs


def _make_room(
    expert: int, packs: list[list[int]], weights: list[float], each: Sequence[float], room: int
) -> None:
    """Put an expert that all packs with room have into another one, of which one expert moves to
    the pack `room`: the other one is full, and `room` is not, so it has an expert for it."""
    lacking = [pack for pack in range(len(packs)) if expert not in packs[pack]]
    full = min(lacking, key=lambda pack: weights[pack])
    moved = min(set(packs[full]) - set(packs[room]), key=lambda other: (each[other], other))
    packs[full][packs[full].index(moved)] = expert
    packs[room].append(moved)
    weights[full] += each[expert] - each[moved]
    weights[room] += each[moved]


def _settled(packs: Sequence[Sequence[int]], current: Held) -> Held:
    """Packs to ranks, each to the one that holds most of its experts already, in their slots."""
    free, chosen = set(range(len(packs))), dict[int, int]()
    common = {
        (pack, rank): len(set(packs[pack]) & set(experts))
        for pack in free
        for rank, experts in enumerate(current)
    }
    for pack, rank in sorted(common, key=lambda pair: (-common[pair], pair)):
        if pack in free and rank not in chosen:
            chosen[rank] = pack
            free.discard(pack)
    return tuple(_slots(packs[chosen[rank]], experts) for rank, experts in enumerate(current))


def _slots(pack: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """The experts of a pack in the order of slots: those that were there stay where they were."""
    new = iter(sorted(set(pack) - set(before)))
    return tuple(expert if expert in pack else next(new) for expert in before)
