"""Decode steps captured as CUDA graphs, against eager ones on the same GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.protocol import Grammar, Sampling
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from tests.fakes.scheduler_planner import Planner, Sequence
from tests.support.worker.runner_cases import STORY, VARIED

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU"),
]
PAGES = 256


@pytest.fixture(scope="module")
def engines(stories: Path) -> list[Engine]:
    """One that runs kernel by kernel, one that replays. In float32: products of other numbers of
    rows round otherwise, and no token here is near enough to another for that."""
    settings = {
        "device": "cuda",
        "dtype": "float32",
        "num_gpu_blocks_override": PAGES,
        "max_num_seqs": 24,
    }
    made = [
        Engine.build(Config(model=str(stories), cuda_graphs=wanted, **settings))  # type: ignore[arg-type]
        for wanted in (False, True)
    ]
    assert made[0].resolved.graphs is None and "--no-cuda-graphs" in str(made[0].resolved)
    assert made[1].resolved.graphs is not None, made[1].resolved.eager
    return made


def run(engine: Engine, samplings: list[Sampling]) -> list[Sequence]:
    """Sequences that join one by one, with one that comes and goes."""
    engine.reset()
    planner, rows = Planner(engine, num_pages=PAGES), list[Sequence]()
    for number, sampling in enumerate(samplings):
        rows.append(planner.add(Sequence(STORY[: 2 + number % 8], sampling)))
        planner.add(Sequence([1, 403], Sampling(2, seed=99)))
        planner.step()
    planner.finish()
    return rows


@pytest.mark.row("F13.06")
def test_replayed_steps_have_the_tokens_of_eager_ones(engines: list[Engine]) -> None:
    eager, replayed = (run(engine, [*VARIED, *VARIED[:7]]) for engine in engines)
    assert [row.log for row in replayed] == [row.log for row in eager]
    for ours, theirs in zip(replayed, eager, strict=True):
        assert ours.chosen == pytest.approx(theirs.chosen, abs=1e-3)


@pytest.mark.row("F13.06")
def test_graphs_are_replayed(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    replays, replay = list[int](), torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph))[1]
    )
    [row] = run(engines[1], [Sampling(20, temperature=0.0)])
    assert len(row.log) == 20 and len(replays) >= 18


@pytest.mark.row("F10.07")
def test_grammars_are_followed_by_replayed_steps(engines: list[Engine]) -> None:
    choice = Grammar("choice", '["yes, she was","no, she was not"]')
    regex = Grammar("regex", "(Lily|Tom) (ran|sat)( and (ran|sat)){2,9}[.]")
    asked = [
        Sampling(40, temperature=0.0, grammar=choice),
        Sampling(60, seed=3, grammar=regex, logprobs=2),
        Sampling(60, seed=4, grammar=regex),
        Sampling(30, seed=5),
    ]
    eager, replayed = (run(engine, asked) for engine in engines)
    assert [row.log for row in replayed] == [row.log for row in eager]
    assert [row.finish for row in replayed][:3] == ["stop"] * 3
