"""The embedding and the language head of a model, without its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from baton_worker.checkpoint.checkpoint_context import rounding, staging
from baton_worker.checkpoint.dummy import random_weights
from baton_worker.checkpoint.empty_model import meta_layers
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.task import served_task
from baton_worker.distributed.pipeline_parallel import stage_spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.build import build
from baton_worker.models.decoder import Model
from baton_worker.quantization.blocks import as_stored
from baton_worker.spec import Stage


def load_tables(
    path: Path,
    context: BuildContext,
    dtype: torch.dtype,
    *,
    dummy: bool = False,
    patches: Sequence[Path] = (),
) -> Model:
    """A model of no layers on one rank: what a draft head shares with a target whose own tables are
    cut over ranks.

    Args:
        path, dummy, patches: as for `load_model`.
        dtype: of the target, as it was loaded.

    Raises:
        ModelError: the checkpoint does not match its architecture.
    """
    checkpoint = open_checkpoint(path, patches)
    config = checkpoint.config
    context = replace(
        rounding(context, config),
        dtype=dtype,
        peers=None,
        adapters=None,
        scaled=False,
        staging=staging(config),
    )
    whole = served_task(config, path)
    bare = replace(whole, spec=stage_spec(whole.spec, Stage(0, 0, 0)))
    model = build(bare.spec, context)
    stored = checkpoint.tensors(whole.spec)
    if dummy:
        stored = random_weights(meta_layers(bare, context), dtype, context.device)
    fill(model, stored, as_stored(whole.spec, config), context.quantization, whole=False)
    return model.eval()
