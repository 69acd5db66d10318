"""Verification of a draft tree: sampling descends it node by node.

At each node the target's token is sampled as it would be without drafts, with the penalties, rules
and grammar of the tokens on the way to it; the next node is the child that equals it. The nodes on
this path are a chain, which is then verified like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.engine.batch.draft_sampler import DraftSampler
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.kv_cache import KVCache


class _Tree(NamedTuple):
    """The rows of logits of a slot."""

    first: int
    """Row of its last known token; those of its nodes follow by number."""
    tokens: list[int]
    """That token and the drafts."""
    parents: list[int]

    def child(self, number: int, token: int) -> int | None:
        """The node behind `number` that drafts this token."""
        for child in range(number + 1, len(self.parents)):
            if self.parents[child] == number and self.tokens[child] == token:
                return child
        return None


class TreeVerification:
    """Descends the trees of a step.

    Args:
        sampler: draws and appends tokens as the target does.
    """

    def __init__(self, sampler: DraftSampler) -> None:
        self._sampler = sampler

    def walk(
        self, inputs: StepInputs, rows: LogitsRows, logits: Tensor
    ) -> tuple[dict[int, list[int]], npt.NDArray[np.bool_]]:
        """Follow each tree as far as its drafts equal the sampled tokens.

        Args:
            rows: [L], all nodes of a slot in the order of their numbers.
            logits: float32 [L, V], left as they are.

        Returns:
            Numbers of the nodes on the way, by slot, 0 first; bool [L], the rows that are left.
        """
        trees = self._trees(inputs, rows)
        paths, going = {slot: [0] for slot in trees}, list(trees)
        self._sampler.begin(going)
        while going:
            chosen = [trees[slot].first + paths[slot][-1] for slot in going]
            picked = logits.index_select(0, torch.tensor(chosen, device=logits.device))
            tokens = self._sampler.sample(picked, np.array(going, np.int64)).tolist()
            reached = [
                (slot, trees[slot].child(paths[slot][-1], token))
                for slot, token in zip(going, tokens, strict=True)
            ]
            going = [slot for slot, child in reached if child is not None]
            for slot, child in reached:
                if child is not None:
                    paths[slot].append(child)
        on_path = ~np.isin(rows.slots, list(trees))
        for slot, path in paths.items():
            on_path[[trees[slot].first + number for number in path]] = True
        return paths, on_path

    def _trees(self, inputs: StepInputs, rows: LogitsRows) -> dict[int, _Tree]:
        trees = dict[int, _Tree]()
        for row in np.flatnonzero(rows.first).tolist():
            if (parents := inputs.trees.get(int(rows.slots[row]))) is not None:
                indices = rows.indices[row : row + len(parents)]
                tokens = inputs.tokens[indices].tolist()
                trees[int(rows.slots[row])] = _Tree(row, tokens, parents.tolist())
        return trees


def as_chain(inputs: StepInputs, rows: LogitsRows, trees: dict[int, list[int]]) -> LogitsRows:
    """Rows of the nodes on the way, as those of a chain: positions count from the known token, and
    behind each row is the draft that comes next."""
    assert rows.drafts is not None, "no row has a tree"
    lengths, index, drafts = rows.lengths.copy(), rows.index.copy(), rows.drafts.copy()
    for row in np.flatnonzero(rows.first).tolist():
        if (path := trees.get(int(rows.slots[row]))) is not None:
            part = slice(row, row + len(path))
            lengths[part] = lengths[row] + np.arange(len(path))
            index[part] = index[row] + np.arange(len(path))
            drafts[part] = [*inputs.tokens[rows.indices[part]][1:].tolist(), -1]
    return LogitsRows(rows.indices, rows.slots, lengths, index, drafts)


def keep_paths(cache: KVCache, inputs: StepInputs, outputs: StepOutputs) -> None:
    """Move the KV of accepted nodes to where that of a chain would be; that of the others is
    overwritten by the next step."""
    starts = dict(zip(inputs.rows.slots.tolist(), inputs.rows.starts.tolist(), strict=True))
    slots, sources, targets = list[int](), list[int](), list[int]()
    for slot, accepted in zip(outputs.slots.tolist(), outputs.accepted.tolist(), strict=False):
        for depth, number in enumerate(outputs.paths.get(slot, [])[1 : accepted + 1], 1):
            if number != depth:
                slots.append(slot)
                sources.append(starts[slot] + number)
                targets.append(starts[slot] + depth)
    if slots:
        size, tables = inputs.tables.page_size, inputs.tables.tables
        (page, offset), (to_page, to_offset) = (
            np.divmod(np.array(some, np.int64), size) for some in (sources, targets)
        )
        for group, table in enumerate(tables):
            cache.move(
                group,
                (table[slots, page].tolist(), offset.tolist()),
                (table[slots, to_page].tolist(), to_offset.tolist()),
            )
