"""Experts that change their rank between steps, on ranks that are threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.rank_share import ModelSplit
from baton_worker.distributed.eplb.balanced_experts import BalancedExperts
from baton_worker.distributed.eplb.config import EplbConfig
from baton_worker.distributed.eplb.placement import Held
from baton_worker.distributed.expert_parallel import LockstepModel
from baton_worker.distributed.step_sync import StepSync
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.layers.build_context import BuildContext
from tests.fakes.threaded_ranks import together
from tests.support import tiny_models
from tests.support.worker.page_driver import Driver

CPU = torch.device("cpu")
PROMPTS = [[list(range(2, 30)), [7, 8, 9]], [[40] * 17], [[5, 6], [300, 1, 2], [9] * 5]]
"""Of each rank."""
STEPS, WAY, NEVER = 8, "allgather_reducescatter", 10**6


class Case(NamedTuple):
    """A model, and how its experts are served."""

    architecture: str
    size: int
    eplb: EplbConfig
    way: str = WAY
    dtype: torch.dtype = torch.float32
    quantization: str = "none"
    backend: str = "auto"

    def context(self) -> BuildContext:
        """Where all parts of it are built."""
        context = BuildContext(CPU, self.dtype, quantization=self.quantization)  # type: ignore[arg-type]
        return replace(context, experts=ExpertKernelSelector(self.backend))


def told(driver: Driver, rank: int) -> list[Tensor]:
    """The logits of prompts and of what follows them greedily, step after step. The last ranks have
    fewer steps and lend their experts to the others then."""
    found = [driver.step(dict(enumerate(PROMPTS[rank])))]
    for _ in range(STEPS - 2 * rank):
        found.append(driver.step({row: [int(x[-1].argmax())] for row, x in found[-1].items()}))
    return [torch.cat([*step.values()]) for step in found]


class Told(NamedTuple):
    """What a rank has computed."""

    logits: list[Tensor]
    before: list[Held]
    after: list[Held]


def served(ranks: Any, folder: Path, case: Case) -> Told:
    """Serve a rank's prompts with balanced experts."""
    lockstep = StepSync(ranks, case.way, CPU, case.eplb)
    part: Any = load_model(
        folder, case.context(), split=ModelSplit(lockstep=lockstep, experts="linear")
    )
    model, rows = LockstepModel(part.model, lockstep), len(PROMPTS[ranks.rank])
    driver = Driver(replace(part, model=model), rows + 1)
    for _ in range(1 + ranks.rank):  # Steps for warming up, which ranks end one by one.
        driver.step({rows: [3]})
    lockstep.warm = True
    layers = [m for m in part.model.modules() if isinstance(m, BalancedExperts)]
    before = [layer.held for layer in layers]
    logits = told(driver, ranks.rank)
    while not lockstep.all_over:
        if lockstep.agree(0, over=True):
            model.run_dummy_step(CPU)
    return Told(logits, before, [layer.held for layer in layers])


EXACT = [
    Case("Qwen3MoeForCausalLM", 2, EplbConfig(4, 2, 2), "naive"),
    Case("LongcatFlashForCausalLM", 2, EplbConfig(9, 3, 0)),
    Case("DeepseekV3ForCausalLM", 3, EplbConfig(9, 3, 4, use_async=False)),
    Case("Qwen3MoeForCausalLM", 2, EplbConfig(4, 2, 2), quantization="int8"),
]
"""Plain, shared and zero experts, floats and packed weights, moved at once or one by one."""
ALIKE = [
    Case("Llama4ForCausalLM", 2, EplbConfig(4, 2, 2), dtype=torch.bfloat16),
    Case("Qwen3MoeForCausalLM", 2, EplbConfig(4, 2, 2), backend="loop"),
]
"""One process rounds once less, or adds up what one of its kernels multiplies within it."""


def whole(folder: Path, case: Case) -> LoadedModel:
    """The model on one process."""
    return load_model(folder, case.context())


@pytest.mark.row("F14.12", "F14.13")
def test_no_bit_depends_on_who_has_an_expert(tmp_path: Path) -> None:
    """Before, in the course of and after rearrangements, with and without replicas: the logits are
    those of one process, or those of a group whose experts stay."""
    for number, case in enumerate(EXACT + ALIKE):
        folder = tmp_path / str(number)
        tiny_models.save_checkpoint(folder, case.architecture)
        parts = together(case.size, lambda ranks: served(ranks, folder, case))  # noqa: B023
        assert len({str(part.after) for part in parts}) == 1
        assert parts[0].after != parts[0].before
        still = case._replace(eplb=EplbConfig(4, NEVER, case.eplb.num_redundant_experts))
        fixed = (
            [told(Driver(whole(folder, case), len(PROMPTS[rank])), rank) for rank in (0, 1, 2)]
            if case in EXACT
            else [p.logits for p in together(2, lambda ranks: served(ranks, folder, still))]  # noqa: B023
        )
        for part, expected in zip(parts, fixed, strict=False):
            assert all(map(torch.equal, part.logits, expected)), case
