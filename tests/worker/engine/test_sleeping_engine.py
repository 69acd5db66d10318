"""An engine that sleeps: its memory is gone, and what wakes up answers as before."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from baton.protocol import Plan, Sampling
from baton_worker.config import Config
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.engine.sleeping_engine import NoTransfers, SleepingEngine
from tests.fakes.scheduler_planner import Planner, Sequence, run_all

pytestmark = pytest.mark.row("F19.05", "F19.06")


def answer(engine: Engine) -> list[int]:
    """Twelve tokens, alone."""
    sequence = Sequence([1, 403, 407, 261], Sampling(12, temperature=0.0))
    run_all(Planner(engine), [sequence])
    engine.reset()
    assert len(sequence.log) == 12
    return sequence.log


@pytest.mark.parametrize("level", [1, 2])
def test_pages_are_freed_and_from_level_two_on_weights(stories: Path, level: int) -> None:
    config = Config(model=str(stories), device="cpu", dtype="float32", threads=1)
    engine = Engine.build(config)
    before, pages, model = answer(engine), weakref.ref(engine.cache), weakref.ref(engine._model)
    sleeper = SleepingEngine(level, engine.sleep(level, config), engine.progress)
    assert engine.sleep_blocker is None
    del engine
    sleeper.free()
    assert pages() is None and (model() is None) == (level == 2)
    assert sleeper.idle and sleeper.progress > 0 and not sleeper.run_dummy_step()
    for nothing in (sleeper.reset, sleeper.leave, sleeper.close):
        nothing()
    with pytest.raises(PlanError, match="sleeps"):
        sleeper.submit(Plan(0, 0, b"", b"", b"", b""))
    assert sleeper.level == level
    sleeper.load()
    assert sleeper.level == 1, "its weights are here, and it still sleeps"
    assert answer(sleeper.wake()) == before


def test_no_pages_no_transfers() -> None:
    relay = NoTransfers()
    for nothing in (relay.start, relay.reset, relay.close):
        nothing()
    assert relay.finished() == [] and not relay.busy
