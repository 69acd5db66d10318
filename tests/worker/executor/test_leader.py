"""What the leader does with its model and its pages is done on every rank."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.protocol import Plan, Sampling
from baton.protocol.token_columns import unpack
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.distributed.communicator import SingleRank
from baton_worker.engine.async_scheduling.staged_forward import StagedForward
from baton_worker.engine.async_scheduling.staged_steps import StagedSteps
from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.executor.commands import (
    Clear,
    Command,
    Copy,
    Load,
    Logits,
    Store,
    Zero,
)
from baton_worker.executor.leader import LedCache, LedHostPages, LedModel
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext
from tests.fakes.page_caches import spec
from tests.fakes.two_ranks import Led, TwoRanks
from tests.support import tiny_models
from tests.support.worker.scheduled_engine import STORY, House, busy

CPU = torch.device("cpu")
GREEDY = Sampling(24, temperature=0.0)


class Told:
    """A pipe that remembers, and what the pages held at the time."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.to: list[slice] = []
        self.looks: list[float] = []
        self.cache: KVCache | None = None

    def send(self, command: Command, to: slice = slice(None)) -> None:
        self.commands.append(command)
        self.to.append(to)
        if self.cache is not None:
            self.looks.append(float(self.cache.layers[0].sum()))


@pytest.fixture
def told() -> Any:
    return Told()


@pytest.fixture
def cache(told: Any) -> LedCache:
    made = LedCache(spec(1, 4), 8, 4, dtype=torch.float32, device=CPU, commands=told)
    for number, layer in enumerate(made.layers):
        layer.copy_(torch.arange(8.0 * (number + 1), 8.0 * (number + 2)).view(8, 1, 1, 1, 1))
    return made


def test_pages_are_copied_and_cleared_here_and_there(told: Any, cache: LedCache) -> None:
    cache.copy([1, 2], [3, 4])
    cache.clear(1, 2)
    cache.clear(0)
    assert told.commands == [Copy([1, 2], [3, 4]), Clear(1, 2), Clear(0, 0)]
    layer = cache.layers[0]
    assert layer[[3, 4], 0, 0, 0, 0].tolist() == [9.0, 10.0]
    assert not layer[0].any() and layer[1, :2].all() and not layer[1, 2:].any()
    cache.zero()
    assert told.commands[3:] == [Zero()] and not layer.any()


def test_pages_go_to_the_host_and_back_here_and_there(told: Any, cache: LedCache) -> None:
    host = LedHostPages(cache, 2, told)
    host.store([5], [1])
    cache.clear(5)
    host.load([1], [6])
    assert told.commands == [Store([5], [1]), Clear(5, 0), Load([1], [6])]
    assert cache.layers[0][6].unique().tolist() == [13.0]


def test_followers_hear_of_a_command_before_it_is_carried_out(told: Any, cache: LedCache) -> None:
    """They work at the same time."""
    told.cache, before = cache, float(cache.layers[0].sum())
    cache.clear(7)
    assert told.looks == [before]


def test_states_are_told_before_their_logits_are_computed(told: Any, stories: Path) -> None:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    model: Any = loaded.model
    hidden = torch.randn(8, 64)[::2]
    logits = LedModel(model, told, SingleRank()).logits(hidden)
    assert told.commands == [Logits((4, 64))]
    assert told.to == [slice(0, 0)], "followers of other stages have no head"
    assert torch.equal(logits, model.logits(hidden))


# ---------------------------------------------------------------- a scheduler over two ranks


def house(led: Led, limits: SchedulerOptions | None = None, **sizes: int) -> House:
    """A scheduler whose worker is two processes."""
    staged = led.loaded.all_stages is not None
    groups = led.cache.groups if staged else None
    made = House(led.loaded, limits, groups=groups, stages=1 + staged, **sizes)
    forward = CausalForward(led.loaded.model, led.cache, CPU)
    host = led.host if sizes.get("host_pages") else None
    if staged:
        forward = StagedForward(led.loaded.model, led.cache, CPU, 2)  # type: ignore[arg-type]
    made.runner = ModelRunner(forward, led.cache, made.runner.batch, host=host)
    if isinstance(forward, StagedForward):
        made.pipeline = StagedSteps(made.runner, forward, 2)
    return made


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(CPU, torch.float32))


def test_no_way_of_scheduling_changes_a_token_of_two_ranks(
    stories: Path, two_ranks: TwoRanks
) -> None:
    """Plans of several steps, cut ones, shared and copied pages, sampling with penalties."""
    runs = (
        SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1),
        SchedulerOptions(max_steps_per_plan=8),
        SchedulerOptions(enable_prefix_caching=False),
    )
    found = []
    for limits in runs:
        with two_ranks.serving(stories) as led:
            found.append(busy(house(led, limits)))
    assert found[0] == found[1] == found[2]


def chatting(made: House) -> list[list[int]]:
    """Three choices that share a prompt, and so many others that pages must make room."""
    handles = [made.submit(STORY, GREEDY, "one") for _ in range(3)]
    handles += [made.submit(STORY[i:] * 3, GREEDY) for i in range(5)]
    made.finish()
    handles.append(made.submit(STORY * 3, GREEDY))
    made.finish()
    return [made.logs[handle] for handle in handles]


def test_pages_swap_and_copy_on_both_ranks(
    stories: Path, loaded: LoadedModel, two_ranks: TwoRanks
) -> None:
    expected = chatting(House(loaded))
    with two_ranks.serving(stories, num_pages=24, host_pages=40) as led:
        small = house(led, num_pages=24, host_pages=40)
        assert chatting(small) == expected
    assert any(plan.swap_out for plan in small.sent) and any(plan.swap_in for plan in small.sent)
    assert any(plan.copy_from for plan in small.sent)


@pytest.mark.row("F14.09")
def test_pages_of_which_each_rank_has_a_part_swap_and_copy_too(
    tmp_path: Path, two_ranks: TwoRanks
) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM", num_key_value_heads=1, vocab_size=512)
    expected = chatting(House(load_model(tmp_path, BuildContext(CPU, torch.float32))))
    sizes = {"num_pages": 24, "host_pages": 40}
    with two_ranks.serving(tmp_path, context=2, **sizes) as led:
        small = house(led, **sizes)
        assert chatting(small) == expected
    assert any(plan.swap_in for plan in small.sent) and any(plan.copy_from for plan in small.sent)


@pytest.mark.parametrize("context", [1, 2])
def test_groups_of_layers_have_their_own_pages_on_both_ranks(
    tmp_path: Path, two_ranks: TwoRanks, context: int
) -> None:
    """Where ranks share tokens, those of layers that see all are divided."""
    tiny_models.save_checkpoint(tmp_path, "Gemma3ForCausalLM", num_key_value_heads=2 // context)
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    expected = House(loaded, num_pages=200)
    assert len(expected.runner.batch.tables.tables) > 1, "this model has one group of layers"
    prompts = [list(range(2, 2 + n)) for n in (5, 30, 41)]

    def run(made: House) -> dict[int, list[int]]:
        for prompt in prompts:
            made.submit(prompt, GREEDY)
        return made.finish()

    with two_ranks.serving(tmp_path, num_pages=200, grouped=True, context=context) as led:
        assert run(house(led, num_pages=200)) == run(expected)


@pytest.mark.row("F14.05")
def test_stages_run_steps_of_different_sequences_at_the_same_time(
    stories: Path, loaded: LoadedModel, tmp_path: Path, two_ranks: TwoRanks
) -> None:
    """They swap, copy and preempt pages, sample with penalties, lose a request, have the same
    groups of layers, and tokens are those of one process."""
    expected = [chatting(House(loaded)), busy(House(loaded))]
    with two_ranks.serving(stories, num_pages=24, host_pages=40, stages=2) as led:
        small = house(led, num_pages=24, host_pages=40)
        assert chatting(small) == expected[0]
        assert [page[0].numel() > 0 for page in led.cache.layers] == [False] * 3 + [True] * 2
    assert any(plan.swap_in for plan in small.sent) and any(plan.copy_from for plan in small.sent)
    with two_ranks.serving(stories, stages=2) as led:
        made = house(led)
        assert busy(made) == expected[1]
        assert in_turn(made.sent) > len(made.sent) / 2
        assert isinstance(made.pipeline, StagedSteps)
        assert made.pipeline.waits.total() < len(made.sent) / 4, made.pipeline.waits
    tiny_models.save_checkpoint(tmp_path, "Gemma3ForCausalLM")
    prompts = [list(range(2, 2 + n)) for n in (5, 30, 41)]
    one = House(load_model(tmp_path, BuildContext(CPU, torch.float32)), num_pages=200)
    with two_ranks.serving(tmp_path, num_pages=200, grouped=True, stages=2) as led:
        both = house(led, num_pages=200)
        assert len(both.runner.batch.tables.tables) > 1, "this model has one group of layers"
        for made in (one, both):
            for prompt in prompts:
                made.submit(prompt, GREEDY)
        assert both.finish() == one.finish()


def in_turn(plans: list[Plan]) -> int:
    """How many plans run none of the sequences of the one before."""
    rows = [set(unpack(plan.rows, "I")) for plan in plans]
    return sum(not before & behind for before, behind in pairwise(rows))
