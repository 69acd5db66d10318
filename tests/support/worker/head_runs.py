"""Runs with a draft head: its drafts are compared with a plain recomputation, and the tokens with
those of a run without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.loaded_model import LoadedModel
from tests.support.worker.draft_heads import Shadow, proposer
from tests.support.worker.scheduled_engine import STORY, House, busy

PROMPTS = [STORY[: 3 + i] for i in range(4)] + [STORY[i:] for i in range(4)]
"""Those of `busy`, in its order."""
Expected = Callable[[list[int], Tensor], list[int]]
"""Drafts behind tokens, from the hidden states [len(tokens) - 1, any] of all but the last."""


def last_hidden(folder: Path) -> Callable[[list[int]], Tensor]:
    """The target's last hidden states, after its final norm, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def states(tokens: list[int]) -> Tensor:
        out = model(torch.tensor([tokens]), output_hidden_states=True)
        hidden: Tensor = out.hidden_states[-1][0]
        return hidden

    return states


def without_drafts(loaded: LoadedModel) -> list[list[int]]:
    """The tokens of a run without a drafter."""
    without = replace(loaded, drafter=None)
    return busy(House(without, SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)))


def check_drafts(
    loaded: LoadedModel,
    folder: Path | None,
    expected: Expected,
    most: int,
    num_pages: int = 28,
    plain: list[list[int]] | None = None,
    every: int = 5,
) -> None:
    """Every draft is the expected one, in chunked prompts, behind accepted and rejected drafts, and
    after preemption; and no token changes, neither beside the head nor because of its drafts.

    Drafts are compared without the prefix cache, which has the KV of another sequence's next token.
    Without a folder `expected` makes the hidden states itself; `plain` is what `without_drafts`
    gives, if that is known; one draft of `every` so many is compared.
    """
    states = (lambda tokens: torch.empty(0)) if folder is None else last_hidden(folder)
    plain = without_drafts(loaded) if plain is None else plain
    texts = [prompt + log for prompt, log in zip(PROMPTS, plain, strict=True)]
    shadow = Shadow(proposer(loaded), texts, most)
    step = {"max_steps_per_plan": 1, "max_num_batched_tokens": 16}
    options = SchedulerOptions(**step)
    alone = SchedulerOptions(**step, enable_prefix_caching=False)
    house = House(loaded, alone, proposer=shadow, num_pages=num_pages, num_speculative_tokens=most)
    assert busy(house) == plain
    assert house.state.counters.preemptions or num_pages > 28
    assert len(shadow.drafts) > 60
    for tokens, drafts in shadow.drafts[::every]:
        wanted = expected(tokens, states(tokens[:-1]))
        assert drafts == wanted[: len(drafts)], len(tokens)
    head = proposer(loaded)
    assert busy(House(loaded, options, proposer=head, num_speculative_tokens=most)) == plain
