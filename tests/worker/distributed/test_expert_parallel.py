"""Workers with sequences of their own that share the experts, as threads of this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.distributed.expert_parallel import ExchangedExperts, LockstepModel
from baton_worker.distributed.step_sync import StepSync
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.moe import Experts, Moe
from baton_worker.models.decoder import Model
from tests.fakes.threaded_ranks import Threaded, together
from tests.support import tiny_models
from tests.support.worker.page_driver import Driver

CPU = torch.device("cpu")
PROMPTS = [[list(range(2, 30)), [7, 8, 9]], [[40] * 17], [[5, 6], [300, 1, 2], [9] * 5]]
"""Of each rank."""
LENGTHS = [6, 15, 3]


def loaded(folder: Path, **changes: Any) -> Any:
    return load_model(folder, BuildContext(CPU, torch.float32), **changes)


def served(
    ranks: Any, folder: Path, way: str = "allgather_reducescatter", **changes: Any
) -> tuple[list[list[int]], Tensor]:
    """What a rank answers to its prompts, and the logits of one token more; it then lends its
    experts until all are done."""
    lockstep = StepSync(ranks, way, CPU)
    part = loaded(folder, split=ModelSplit(lockstep=lockstep, experts="linear"), **changes)
    model = LockstepModel(part.model, lockstep)
    run = Driver(replace(part, model=model), len(PROMPTS[ranks.rank]))
    tokens = run.greedy(PROMPTS[ranks.rank], LENGTHS[ranks.rank])
    logits = run.step({0: [3]})[0]
    while not lockstep.all_over:
        if lockstep.agree(0, over=True):
            model.run_dummy_step(CPU)
    return tokens, logits


@pytest.mark.row("F13.09")
@pytest.mark.row("F14.07")
@pytest.mark.row("F14.11")
@pytest.mark.parametrize("way", ["naive", "allgather_reducescatter"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "architecture", ["Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "LongcatFlashForCausalLM"]
)
def test_each_rank_answers_as_if_it_had_all_experts(
    tmp_path: Path, architecture: str, size: int, way: str
) -> None:
    """Steps of different sizes and numbers: who is done first lends its experts to the others."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    whole = loaded(tmp_path)
    for rank, (tokens, logits) in enumerate(
        together(size, lambda ranks: served(ranks, tmp_path, way))
    ):
        run = Driver(whole, len(PROMPTS[rank]))
        assert tokens == run.greedy(PROMPTS[rank], LENGTHS[rank])
        assert (logits - run.step({0: [3]})[0]).abs().max() < 1e-3


def test_a_token_does_not_see_who_else_is_there(tmp_path: Path) -> None:
    """The bits of its logits are those of a step that it has for itself."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")

    def part(ranks: Any) -> list[Tensor]:
        lockstep, found = StepSync(ranks, "allgather_reducescatter", CPU), list[Tensor]()
        part = loaded(tmp_path, split=ModelSplit(lockstep=lockstep, experts="linear"))
        model = LockstepModel(part.model, lockstep)
        for alone in (True, False):
            if alone and ranks.rank:
                assert lockstep.agree(0)
                model.run_dummy_step(CPU)
            else:
                run = Driver(replace(part, model=model), 1)
                found.append(run.step({0: PROMPTS[ranks.rank][0]})[0])
        return found

    (alone, crowded), _ = together(2, part)
    assert torch.equal(alone, crowded)


def test_a_step_that_answers_nothing_takes_part_in_every_layer(tmp_path: Path) -> None:
    """A chunk in the middle of a prompt: the ranks that lend their experts count on the last layer
    too."""
    tiny_models.save_checkpoint(tmp_path, "Qwen3MoeForCausalLM")
    text = PROMPTS[0][0]

    def part(ranks: Any) -> Tensor | None:
        lockstep = StepSync(ranks, "allgather_reducescatter", CPU)
        part = loaded(tmp_path, split=ModelSplit(lockstep=lockstep, experts="linear"))
        model = LockstepModel(part.model, lockstep)
        if ranks.rank:
            for _ in range(2):
                assert lockstep.agree(0)
                model.run_dummy_step(CPU)
            return None
        run = Driver(replace(part, model=model), 1)
        run.hidden({0: text[:9]})
        return run.step({0: text[9:]})[0]

    found, _ = together(2, part)
    assert found is not None
    torch.testing.assert_close(found, Driver(loaded(tmp_path), 1).step({0: text})[0][9:])


@pytest.mark.row("F06.04")
@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "Qwen2MoeForCausalLM"])
def test_shared_experts_run_while_tokens_travel(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain ones, and ones that a gate weighs: the same answers, and what a rank's own tokens need
    is computed between the two halves of a gather."""
    tiny_models.save_checkpoint(tmp_path, architecture)
    whole, compute = loaded(tmp_path), Moe._shared
    seen = defaultdict[int, list[str]](list)

    class Watched(Threaded):
        def begin_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
            seen[get_ident()].append("begin")
            coming = super().begin_all_gather(tensor)

            def ended() -> list[Tensor]:
                seen[get_ident()].append("end")
                return coming()

            return ended

    def shared(moe: Moe, x: Tensor) -> Tensor:
        seen[get_ident()].append("shared")
        return compute(moe, x)

    def part(ranks: Any) -> tuple[list[list[int]], list[str]]:
        ranks.__class__ = Watched
        tokens, _ = served(ranks, tmp_path)
        return tokens, seen[get_ident()]

    monkeypatch.setattr(Moe, "_shared", shared)
    for rank, (tokens, order) in enumerate(together(2, part)):
        said = " ".join(order)
        assert said.count("begin shared end") == said.count("shared") > 0
        monkeypatch.undo()
        assert tokens == Driver(whole, len(PROMPTS[rank])).greedy(PROMPTS[rank], LENGTHS[rank])


def test_only_the_experts_are_dealt_out(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "DeepseekV3ForCausalLM")

    def part(ranks: Any) -> Any:
        lockstep = StepSync(ranks, "naive", CPU)
        return loaded(tmp_path, split=ModelSplit(lockstep=lockstep, experts="round_robin"))

    whole, parts = loaded(tmp_path), together(2, part)
    held = [sum(e.weight_bytes for e in experts(m.model)) for m in (whole, *parts)]
    assert held[0] == held[1] + held[2] and held[1] == held[2]
    rest = [m.weight_bytes - experts for m, experts in zip((whole, *parts), held, strict=True)]
    assert rest[0] == rest[1] == rest[2]
    exchanged = [m for m in parts[0].model.modules() if isinstance(m, ExchangedExperts)]
    assert [m.experts for m in exchanged] == experts(parts[0].model)


def experts(model: Model) -> list[Experts]:
    return [layer for layer in model.layers() if isinstance(layer, Experts)]


@pytest.mark.parametrize(
    ("architecture", "router", "why"),
    [
        ("LlamaForCausalLM", "top_k", "this model has no experts"),
        ("Qwen3MoeForCausalLM", "expert_choice", "experts would depend on its rank"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(
    tmp_path: Path, architecture: str, router: str, why: str
) -> None:
    tiny_models.save_checkpoint(tmp_path, architecture)
    with pytest.raises(SettingsError, match=why):
        together(2, lambda ranks: served(ranks, tmp_path, router=router))
