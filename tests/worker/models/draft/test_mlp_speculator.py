"""The MLP speculator's drafts are those of its paper, recomputed from the target's states."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.draft_heads import Tensors, random_tensors, save_head, with_head
from tests.support.worker.head_runs import check_drafts
from tests.support.worker.scheduled_engine import DEVICE

STAGES, INNER = 3, 48


def shapes(hidden: int, vocab: int, stages: int) -> dict[str, tuple[int, ...]]:
    made: dict[str, tuple[int, ...]] = {}
    for n in range(stages):
        made |= {f"emb.{n}.weight": (vocab, INNER), f"head.{n}.weight": (vocab, INNER)}
        made |= {f"ln.{n}.weight": (INNER,), f"ln.{n}.bias": (INNER,)}
    made |= {f"proj.{n}.weight": (INNER, INNER if n else hidden) for n in range(max(stages, 2))}
    return made


def drafts_of(
    tensors: Tensors, token: int, hidden: Tensor, *, tied: bool, scaled: bool
) -> list[int]:
    """Drafts behind a token, from the hidden state [hidden] before it."""
    share = 0.5 ** (0.5 / STAGES)
    weight = math.sqrt((1 - share**2) * (INNER / 2)) / share
    state, drafts = hidden, []
    if scaled:
        state = state * torch.rsqrt(state.pow(2).mean() + 1e-6) / 2**0.5
    for stage in range(STAGES):
        one, projection = (0, min(stage, 1)) if tied else (stage, stage)
        x = (
            tensors[f"proj.{projection}.weight"] @ state
            + weight * tensors[f"emb.{one}.weight"][token]
        )
        x = x * torch.rsqrt(x.pow(2).mean() + 1e-6)
        state = F.gelu(x * tensors[f"ln.{one}.weight"] + tensors[f"ln.{one}.bias"])
        token = int((tensors[f"head.{one}.weight"] @ state).argmax())
        drafts.append(token)
    return drafts


@pytest.mark.row("D08", "F08.09")
def test_drafts_are_those_of_the_paper(stories: Path, tmp_path: Path) -> None:
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32))
    hidden, vocab = loaded.spec.hidden, loaded.vocab_size
    for tied, scaled in ((False, True), (True, False)):
        tensors = random_tensors(shapes(hidden, vocab, 1 if tied else STAGES))
        stored = {f"speculator.{name}": tensor for name, tensor in tensors.items()}
        folder = save_head(
            tmp_path / str(tied),
            stored,
            architectures=["MLPSpeculatorPreTrainedModel"],
            n_predict=STAGES,
            emb_dim=hidden,
            inner_dim=INNER,
            vocab_size=vocab,
            tie_weights=tied,
            scale_input=scaled,
        )
        served = with_head(loaded, folder, "mlp_speculator")

        def drafts(tokens: list[int], states: Tensor) -> list[int]:
            return drafts_of(tensors, tokens[-1], states[-1], tied=tied, scaled=scaled)  # noqa: B023

        check_drafts(served, stories, drafts, STAGES)
