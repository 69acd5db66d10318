"""Plans from lists, and an input batch to apply them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baton.protocol import NewSequence, Plan, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs


def batch(**changes: Any) -> InputBatch:
    """A small batch with other sizes or options."""
    sizes = BatchSizes(4, 16, page_size=4, num_pages=8, vocab_size=50)
    others = {name: changes.pop(name) for name in sizes._fields if name in changes}
    return InputBatch(sizes._replace(**others), **changes)


def plan(step: int = 0, **columns: Any) -> Plan:
    """A plan from lists; rows are (slot, start, count, samples)."""
    rows = columns.pop("run", [])
    slots, starts, counts, samples = zip(*rows, strict=True) if rows else ((), (), (), ())
    fields: dict[str, Any] = {
        "rows": pack(slots, "I"),
        "num_computed": pack(starts, "I"),
        "num_scheduled": pack(counts, "I"),
        "samples": pack(samples, "B"),
        "release": pack(columns.pop("release", ()), "I"),
    }
    if "page_rows" not in columns:
        pages = columns.pop("pages", {})
        fields["page_rows"] = pack(pages, "I")
        fields["page_counts"] = pack((len(p) for p in pages.values()), "I")
        fields["pages"] = pack((page for p in pages.values() for page in p), "I")
    return Plan(epoch=0, step=step, **(fields | columns))


def entering(
    slot: int, tokens: list[int], num_prompt: int = 0, computed: int = 0, **sampling: Any
) -> NewSequence:
    settings = Sampling(9, **sampling)
    return NewSequence(
        slot, pack(tokens), num_prompt or len(tokens), settings, num_computed=computed
    )


def commit(
    held: InputBatch, inputs: StepInputs, tokens: Mapping[int, Sequence[int]] | None = None
) -> Committed:
    """Commit a step that has made these tokens, by slot."""
    outputs, made = StepOutputs(inputs), tokens or {}
    outputs.slots = np.array([*made], np.int64)
    outputs.counts = np.array([len(some) for some in made.values()], np.int64)
    outputs.tokens = np.array([token for some in made.values() for token in some], np.int32)
    return held.commit(outputs)


def with_prompt(tokens: int = 6, sampled: int | None = None, **sampling: Any) -> InputBatch:
    """Slot 2 has entered with a prompt, two pages, and has run it all; then it may have sampled."""
    held = batch()
    first = entering(2, list(range(1, tokens + 1)), **sampling)
    inputs = held.prepare(plan(new_sequences=(first,), pages={2: [5, 3]}, run=[(2, 0, tokens, 1)]))
    commit(held, inputs, {} if sampled is None else {2: [sampled]})
    return held
