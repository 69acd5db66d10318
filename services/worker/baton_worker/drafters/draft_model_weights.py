"""Loads a whole model as a drafter (Leviathan, Kalman, Matias 2023, arXiv:2211.17192)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from baton.checkpoint.hub import resolve as fetch
from baton.errors import SettingsError
from baton.logs import logger
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.drafters.token_table import difference
from baton_worker.kv_cache import group_bytes, one_group
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.encoder import EncoderModel
from baton_worker.speculative.proposer import DraftWeights, WeightsContext

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class DraftModelWeights(DraftWeights):
    """A drafter, on the device of the target."""

    loaded: LoadedModel
    build: BuildContext
    """The build context of its layers."""


def load_draft_model(context: WeightsContext) -> DraftModelWeights:
    """Load the model that `--speculative-config` names.

    Raises:
        HubError: there is none.
        ModelError: it cannot be loaded.
        SettingsError: it cannot draft for this target.
    """
    config, settings = context.config, context.settings
    path = fetch(settings.model_copy(update={"model": config.model}))
    build = _build(context)
    undecided = settings.dtype == "auto" and build.dtype is torch.float32
    loaded = load_model(path, build, narrow=torch.bfloat16 if undecided else None)
    _check(path, loaded, context)
    assert not isinstance(loaded.model, EncoderModel)
    build = replace(build, dtype=loaded.model.dtype)
    page = settings.block_size
    groups = one_group(loaded.spec, page)
    page_bytes = group_bytes(loaded.spec, groups, page, build.dtype, build.codes)
    mib = loaded.weight_bytes >> 20
    log.info("%s drafts: %d MiB of weights, %d bytes per page", path.name, mib, page_bytes)
    return DraftModelWeights(page_bytes, loaded, build)


def _build(context: WeightsContext) -> BuildContext:
    """The target's build context, for one process and without adapters."""
    quantization = context.config.quantization or context.build.quantization
    return replace(
        context.build,
        quantization=quantization,
        int8_inputs=False,
        peers=None,
        adapters=None,
        trees=False,
    )


def _check(path: Path, loaded: LoadedModel, context: WeightsContext) -> None:
    """Raise `SettingsError` unless the model makes tokens, and those of the target."""
    target = context.target
    if not loaded.generates or isinstance(loaded.model, EncoderModel):
        raise SettingsError(
            f"--speculative-config: {path.name} makes no tokens. Name a model that generates text."
        )
    if why := difference(path, loaded.vocab_size, context.target_path, target.vocab_size):
        raise SettingsError(
            f"--speculative-config: {path.name} cannot draft for this model, {why}. Name a model "
            "with the same tokenizer, such as a smaller one of the same family."
        )
    if loaded.max_length < target.max_length:
        log.warning(
            "%s drafts for the first %d tokens of a sequence, as many as it was trained for",
            path.name,
            loaded.max_length,
        )
