"""Plans of a busy worker: prompts in chunks beside decode rows, of any number of each."""

from __future__ import annotations

import random
from typing import Any

from baton.protocol import Sampling
from baton_worker.engine.engine import Engine
from tests.fakes.scheduler_planner import Planner, Sequence

SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.9, "min_p": 0.1},
    {"top_k": 5, "top_p": 0.8},
]
PROMPTS = (1, 2, 5, 15, 16, 17, 31, 33, 64, 100)
CHUNKS = (1, 3, 16, 48, 200)


def serve(engine: Engine, number: int, prompts: tuple[int, ...] = PROMPTS) -> int:
    """Run so many random plans: sequences come, are read in chunks, decode and go. Returns how many
    of them had prompts beside decode rows."""
    numbers, mixed = random.Random(0), 0
    engine.reset()
    resolved = engine.resolved
    groups = len(resolved.groups.windows)
    planner = Planner(engine, resolved.num_pages, resolved.page_size, groups=groups)
    while planner.steps < number:
        arriving = numbers.choice((0, 0, 1, 1, 3, 17)) if planner.running else 1
        for _ in range(min(arriving, resolved.max_num_seqs - len(planner.running))):
            how = Sampling(numbers.randint(1, 24), seed=3, **numbers.choice(SAMPLINGS))
            planner.add(Sequence([5] * numbers.choice(prompts), how))
        decoding = {len(row.log) > 0 for row in planner.running.values()}
        mixed += len(decoding) == 2
        planner.chunk = numbers.choice(CHUNKS)
        for result in [*engine.submit(planner.plan()), *engine.finish()]:
            planner.settle(result)
    engine.reset()
    return mixed
