"""Checkpoints of random draft heads, and proposers whose drafts are recorded beside a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.drafters.draft_head_weights import load_draft_head
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative import PROPOSERS
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import (
    DraftRequest,
    DraftSampler,
    Proposer,
    TargetStep,
    Tokens,
    WeightsContext,
)
from tests.support.worker.proposers import HalfRight, MostProbable, context

Tensors = dict[str, Tensor]


def save_head(folder: Path, tensors: Tensors, **config: Any) -> Path:
    """A folder with a head's config.json and its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Matrices that keep the size of vectors, and norms about one."""
    made = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=made) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.2)
        + (1.0 if "norm" in name or (name.startswith("ln") and name.endswith("weight")) else 0.0)
        for name, shape in shapes.items()
    }


class Shadow(Proposer):
    """Records what a head drafts while the engine verifies the drafts of another proposer, which
    knows some of the tokens: so a head is seen behind drafts that were accepted and rejected."""

    def __init__(self, head: Proposer, texts: Sequence[Sequence[int]], most: int) -> None:
        self.head, self._known, self._most = head, HalfRight(texts), most
        self.drafts: list[tuple[list[int], list[int]]] = []
        """Tokens of a sequence, and the head's most probable drafts behind them."""

    def observe(self, step: TargetStep) -> None:
        """See `Proposer`."""
        self.head.observe(step)

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        asked = [request._replace(most=min(request.most, self._most)) for request in requests]
        for request, drafts in zip(asked, self.head.propose(asked, MostProbable()), strict=True):
            assert drafts.dtype == np.int32 and len(drafts) <= request.most
            if len(drafts):
                self.drafts.append((request.tokens.tolist(), drafts.tolist()))
        return self._known.propose(requests, sampler)

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        self.head.release(slot)


def with_head(
    loaded: LoadedModel, folder: Path, method: str, *, within: bool = False, most: int = 1
) -> LoadedModel:
    """A loaded model on the CPU, with the head of a folder, or `within` the target's own, for at
    most so many drafts."""
    config = SpeculativeConfig(most, method=method, model="" if within else str(folder))
    build = BuildContext(torch.device("cpu"), torch.float32)
    weights = load_draft_head(WeightsContext(config, Config(model=""), loaded, folder, build))
    return replace(loaded, drafter=weights)


def proposer(loaded: LoadedModel) -> Proposer:
    """The proposer of a model's head."""
    assert loaded.drafter is not None
    made: Proposer = PROPOSERS.load(loaded.drafter.method)(context(SpeculativeConfig(1), loaded))
    return made
