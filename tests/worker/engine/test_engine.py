"""The engine as a whole, from settings to tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import HubError
from baton.protocol import Grammar, Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.events import Arrived, Dispatch, Settled, Tick, WorkerJoined
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from baton_worker.checkpoint.load import load_model
from baton_worker.config import Config
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.graphs import Sizes
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.mixer import Attending
from baton_worker.layers.moe.moe import Experts
from baton_worker.worker_info import worker_info
from tests.fakes.replayed_steps import Counting
from tests.fakes.scheduler_planner import Planner, Sequence, run_all
from tests.support import tiny_models


def config(stories: Path) -> Config:
    return Config(
        model=str(stories),
        device="cpu",
        dtype="float32",
        num_gpu_blocks_override=64,
        max_num_seqs=8,
        threads=1,
    )


@pytest.fixture(scope="module")
def engine(stories: Path) -> Engine:
    return Engine.build(config(stories))


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_pages_of_codes_serve_each_sequence_as_if_it_were_alone(stories: Path, kind: str) -> None:
    given = config(stories).model_copy(update={"kv_cache_dtype": kind})
    engine = Engine.build(given)
    assert all(layer.dtype is torch.uint8 for layer in engine.cache.layers)
    prompts = ([1, 403, 407], list(range(1, 60)), [1] + [7] * 20)

    def run(*chosen: list[int]) -> list[list[int]]:
        engine.reset()
        made = [Sequence(prompt, Sampling(24, temperature=0.0)) for prompt in chosen]
        return run_all(Planner(engine, num_pages=64), made)

    together = run(*prompts)
    assert together == [run(prompt)[0] for prompt in prompts]
    assert all(len(tokens) == 24 for tokens in together)


@pytest.mark.row("F12.10")
def test_the_layout_of_pages_changes_no_token(stories: Path, engine: Engine) -> None:
    given = config(stories).model_copy(update={"kv_cache_layout": "nhd"})
    other = Engine.build(given)
    assert str(other.resolved.build.layout) == "nhd"
    assert "head by head" in str(engine.resolved) and "head by head" not in str(other.resolved)
    assert other.cache.layers[0].stride() != engine.cache.layers[0].stride()
    logs = []
    for one in (engine, other):
        one.reset()
        rows = [Sequence(list(range(1, 9 + i)), Sampling(40, seed=i)) for i in range(4)]
        logs.append(run_all(Planner(one, num_pages=64), rows))
    assert logs[0] == logs[1] and all(len(log) == 40 for log in logs[0])


def test_engines_of_one_process_have_kernels_of_their_own(tmp_path: Path) -> None:
    """Each keeps what its settings name, also once another engine was built."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")

    def built(attention: str, experts: str, sampler: str) -> Engine:
        kernels = {
            "attention_backend": attention,
            "moe_backend": experts,
            "sampling_backend": sampler,
        }
        return Engine.build(config(tmp_path).model_copy(update=kernels))

    one, other = built("reference", "loop", "torch"), built("grouped", "grouped", "auto")
    assert kernels_of(one) == {"ReferenceBackend", "LoopExperts", "torch"}
    assert kernels_of(other) == {"GroupedBackend", "GroupedExperts", "auto"}
    logs = []
    for engine in (one, other, one):
        engine.reset()
        rows = [Sequence([1, 5, 9 + i], Sampling(12, seed=i)) for i in range(3)]
        logs.append(run_all(Planner(engine, num_pages=64), rows))
    assert logs[0] == logs[1] == logs[2] and all(len(log) == 12 for log in logs[0])


def kernels_of(engine: Engine) -> set[str]:
    """Names of what attends, what experts run in, and what samples."""
    layers = list(engine._model.modules())
    found = {type(m.backend).__name__ for m in layers if isinstance(m, Attending)}
    found |= {type(m._kernel).__name__ for m in layers if isinstance(m, Experts)}
    return found | {engine._runner._sampling.sampler._backend.name}


@pytest.mark.row("F09.01", "F09.13")
def test_golden_tokens_after_warm_up(assets: Path, engine: Engine) -> None:
    case = json.loads((assets / "stories260k" / "golden_greedy.json").read_text())["cases"][1]
    engine.reset()
    sequence = Sequence(case["prompt_ids"], Sampling(64, temperature=0.0))
    assert run_all(Planner(engine, num_pages=64), [sequence]) == [case["output_ids"]]
    assert not engine.idle
    engine.reset()
    assert engine.idle


@pytest.mark.row("F13.06")
def test_decode_steps_are_captured_at_warm_up_and_replayed(
    stories: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """By the twin of a recorder of CUDA graphs, which no setting chooses on a CPU, beside what is
    chosen there."""
    loaded = load_model(stories, BuildContext(torch.device("cpu"), torch.float32))
    counts, resolved = Counting(), replace(engine.resolved, graphs=Sizes((1, 2, 4, 8), 64))
    other = Engine(loaded, resolved, recorder=counts)
    with caplog.at_level("INFO"):
        other.warm_up()
    assert counts.captured == 4 and "captured decode steps" in caplog.text
    logs = []
    for one in (engine, other):
        for _ in range(2):
            one.reset()
            rows = [Sequence([1, 403, 407 + i], Sampling(70, seed=i)) for i in range(3)]
            logs.append(run_all(Planner(one, num_pages=64), rows))
    assert logs[0] == logs[1] == logs[2] == logs[3]
    # Of 69 steps the last eight are of rows longer than what is captured.
    assert counts.replays == 2 * 61
    assert len(other.cache.layers[0]) == engine.resolved.num_pages + 1, "a spare page"


def test_reset_forgets_slots_and_steps(engine: Engine) -> None:
    engine.reset()
    first = Planner(engine, num_pages=64, steps=10)
    first.add(Sequence([1, 2, 3], Sampling(5)))
    first.step()
    engine.reset()
    again = Planner(engine, num_pages=64)
    again.add(Sequence([1, 2, 3], Sampling(5)))
    again.step()
    with pytest.raises(PlanError):
        engine.step(first.plan())


CHOICE = Sampling(20, grammar=Grammar("choice", '["yes","no"]'))


@pytest.mark.row("F10.03")
def test_grammars_are_followed_after_a_reset_too(engine: Engine) -> None:
    for _ in range(2):
        engine.reset()
        sequence = Sequence([1, 2, 3], CHOICE)
        run_all(Planner(engine, num_pages=64), [sequence])
        assert sequence.finish == "stop" and not sequence.failure


def test_without_a_vocabulary_only_grammars_are_refused(stories: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to((stories / name).resolve())
    engine = Engine.build(config(tmp_path))
    free, bound = Sequence([1, 2], Sampling(4)), Sequence([1, 2], CHOICE)
    run_all(Planner(engine, num_pages=64), [free, bound])
    assert len(free.log) == 4 and "no vocabulary" in bound.failure


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError):
        Engine.build(Config(model=str(tmp_path / "nothing"), device="cpu", threads=1, offline=True))


@pytest.mark.row("F06.11", "F06.29")
def test_routing_can_be_simulated_and_its_balance_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save_model(tmp_path, "Qwen3MoeForCausalLM")
    for router, balance in (("balanced", "1.00"), ("skewed", "0.")):
        settings = config(tmp_path).model_copy(
            update={"moe_router": router, "expert_stats_window": 8}
        )
        engine = Engine.build(settings)
        caplog.clear()
        with caplog.at_level("INFO"):
            # 8 tokens a step, 3 experts each, of 8.
            rows = [Sequence([2, 3 + row], Sampling(12, temperature=0.0)) for row in range(8)]
            run_all(Planner(engine, num_pages=64), rows)
        reports = [r.message for r in caplog.records if r.message.startswith("experts:")]
        assert reports and f"balancedness {balance}" in reports[0]


def test_without_experts_there_is_nothing_to_watch(stories: Path) -> None:
    settings = config(stories).model_copy(update={"expert_stats_window": 8, "moe_router": "skewed"})
    assert Engine.build(settings).experts is None


@pytest.mark.parametrize(
    ("architecture", "grouped", "windows"),
    [
        ("MistralForCausalLM", True, (12,)),
        ("Gemma3ForCausalLM", True, (0, *[9] * 5)),
        ("Gemma3ForCausalLM", False, (0,)),
        ("Lfm2MoeForCausalLM", True, (0, 3, 3, 3)),
        ("MiniMaxForCausalLM", True, (0, 17, 17, 17)),
        ("MiniMaxForCausalLM", False, (0,)),
        ("Mamba2ForCausalLM", True, (17,)),
        ("BambaForCausalLM", True, (0, 17, 17, 17)),
        ("MambaForCausalLM", True, (17,)),
        ("Qwen3NextForCausalLM", True, (0, 17, 17, 17)),
    ],
)
def test_a_models_windows_reach_the_scheduler_and_the_slots(
    tmp_path: Path, architecture: str, grouped: bool, windows: tuple[int, ...]
) -> None:
    tiny_models.save_checkpoint(tmp_path, architecture)
    engine = Engine.build(config(tmp_path).model_copy(update={"hybrid_kv_cache": grouped}))
    relay: Any = SimpleNamespace(address="", layout="")
    info = worker_info(engine, "m", "both", relay)
    assert info.windows == engine.resolved.groups.windows == windows
    assert (str(engine.resolved.groups) in str(engine.resolved)) == (len(windows) > 1)
    assert info.kv_bytes == sum(plane[: info.num_pages].nbytes for plane in engine.cache.planes)
    state, dropped = State(SchedulerOptions()), 0
    state.apply(WorkerJoined("w", 1, info))
    state.apply(Arrived("g", Submit(1, "r", pack(range(2, 40)), Sampling(80))))
    while not state.idle:
        for decision in state.apply(Tick(0.0)):
            if isinstance(decision, Dispatch):
                plan = decision.message
                dropped = max([dropped, *unpack(plan.drop_counts, "I")])
                for turn in range(plan.num_steps):
                    state.apply(Settled("w", engine.step(plan, turn)))
    assert dropped >= (38 + 80 - 12) // info.page_size - 1 if any(windows) else not dropped


@pytest.mark.row("F08.01", "F08.11")
def test_a_drafter_takes_its_share_of_memory_and_changes_no_token(
    stories: Path, engine: Engine
) -> None:
    """It lives through a reset and through sleep, and drafts trees."""
    drafting: dict[str, object] = {
        "model": str(stories),
        "num_speculative_tokens": 3,
        "quantization": "int4",
    }
    given = config(stories).model_copy(update={"speculative_config": json.dumps(drafting)})
    one = Engine.build(given)
    assert one.resolved.draft_page_bytes == one.resolved.page_bytes
    assert one.resolved.kv_bytes == 2 * 64 * one.resolved.page_bytes
    drafting["speculative_token_tree"] = "[(0,), (1,), (0, 0)]"
    tree = given.model_copy(update={"speculative_config": json.dumps(drafting)})
    logs = []
    for other in (engine, Engine.build(tree), one, one.sleep(1, given)()()):
        other._factory.drafting.step_costs = None  # It drafts whether or not that pays.
        for _ in range(2):
            other.reset()
            rows = [Sequence([1, 403, 407 + i], Sampling(20, seed=i)) for i in range(3)]
            logs.append(run_all(Planner(other, num_pages=64), rows))
    assert all(log == logs[0] for log in logs)
    assert other._runner.batch.drafts._acceptance._tried.any()
