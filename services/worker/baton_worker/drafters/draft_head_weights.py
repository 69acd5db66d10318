"""Checkpoints of trained draft heads: which head, its method, and its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor

from baton.checkpoint.hub import resolve as fetch
from baton.errors import ModelError, SettingsError
from baton.registry import Registry
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.load import open_checkpoint, staging
from baton_worker.checkpoint.unstack import Stored
from baton_worker.config import Config
from baton_worker.layers.build_context import BuildContext, Quantize
from baton_worker.models.decoder import Model
from baton_worker.models.draft.medusa import Medusa
from baton_worker.models.draft.mlp_speculator import MlpSpeculatorModel
from baton_worker.models.draft.state_head import StateHead
from baton_worker.models.families.draft_common import DRAFT_HEADS, METHODS, Target
from baton_worker.spec import Decoder, DraftHead, Head, MedusaHeads, MlpSpeculator, Norm
from baton_worker.spec.hf_config import read_config
from baton_worker.speculative.proposer import DraftWeights, WeightsContext

HEADS = Registry("draft heads", DRAFT_HEADS)
_FLAG = "--speculative-config"
_KINDS = {"medusa": "MedusaModel", "mlp_speculator": "MLPSpeculatorPreTrainedModel"}
"""Architecture by `model_type`, of configs that name none."""


STATE_HEADS = ("medusa", "mlp_speculator")
"""Methods of heads without KV."""


class HeadConfig(NamedTuple):
    """A head's config.json."""

    architecture: str
    fields: SimpleNamespace


def head_config(path: Path) -> HeadConfig:
    """Which head a checkpoint holds.

    Raises:
        ModelError: it is none that Baton knows.
    """
    config = read_config(path)
    names = _names(config)
    for name in names:
        if name in HEADS:
            return HeadConfig(name, config)
    raise ModelError(
        f"{path} holds no draft head that Baton knows: {', '.join(names) or 'no architecture'}. "
        f"Known: {', '.join(HEADS.names())}."
    )


def method_of_head(settings: Config, reference: str) -> str:
    """The method of the draft head that a checkpoint holds; empty if it is a whole model.

    Raises:
        HubError: there is no such checkpoint.
    """
    path = fetch(settings.model_copy(update={"model": reference}))
    names = _names(read_config(path)) if path.is_dir() else []
    return next((METHODS[name] for name in names if name in HEADS), "")


def _names(config: SimpleNamespace) -> list[str]:
    """The architectures that a config may mean."""
    named = [*(getattr(config, "architectures", None) or ())]
    if hasattr(config, "medusa_num_heads"):  # The authors' config has no other sign.
        named.append("MedusaModel")
    if kind := _KINDS.get(getattr(config, "model_type", "")):
        named.append(kind)
    return named


@dataclass(frozen=True, slots=True)
class StateHeadWeights(DraftWeights):
    """A head that keeps no KV."""

    head: StateHead


def load_draft_head(context: WeightsContext) -> DraftWeights:
    """Load the head that `--speculative-config` names. The target shows its hidden states from here
    on.

    Raises:
        HubError: there is no such checkpoint.
        ModelError: it is damaged, or not that of a head for this target.
        SettingsError: the method is another one, or the target has no hidden states to show.
    """
    config, model = context.config, context.target.model
    path = fetch(context.settings.model_copy(update={"model": config.model}))
    head = head_config(path)
    method = METHODS[head.architecture]
    if config.method not in ("draft_model", method):
        raise SettingsError(
            f"{_FLAG}: {path} holds a {head.architecture}, whose method is {method}, not "
            f"{config.method}."
        )
    if not isinstance(model, Model):
        raise SettingsError(f"{_FLAG}: {method} reads hidden states that this model does not show.")
    spec: DraftHead = HEADS.load(head.architecture)(head.fields, _target(context))
    _check_fit(spec, head.architecture, context)
    model.draft_inputs = ()
    return _state_head(spec, head, path, context)


def _state_head(
    spec: MedusaHeads | MlpSpeculator, head: HeadConfig, path: Path, context: WeightsContext
) -> StateHeadWeights:
    module = _MODULES[type(spec)](spec, _site(head, context))
    layout = Decoder(spec.hidden, spec.vocab, (), Norm(0.0), Head(), tensors=spec.tensors)
    stored = dict(open_checkpoint(path).tensors(layout))
    if isinstance(spec, MedusaHeads) and spec.vocab < spec.target_vocab:
        module.token_ids = _token_map(stored).to(context.build.device)
    fill(module, iter(stored.items()), layout, _quantization(context))
    method = METHODS[head.architecture]
    return StateHeadWeights(0, module.eval(), method=method, most=module.num_drafts)


_MODULES: dict[type, Any] = {MedusaHeads: Medusa, MlpSpeculator: MlpSpeculatorModel}


def _target(context: WeightsContext) -> Target:
    config = context.target.config
    return Target(getattr(config, "text_config", config), context.target.spec)


def _quantization(context: WeightsContext) -> Quantize:
    return context.config.quantization or context.build.quantization


def _site(head: HeadConfig, context: WeightsContext) -> BuildContext:
    """What the layers of a head are built from: those of the target, for one process."""
    return replace(
        context.build,
        dtype=context.target.model.dtype,
        quantization=_quantization(context),
        peers=None,
        adapters=None,
        scaled=False,
        staging=staging(head.fields),
    )


def _check_fit(spec: DraftHead, architecture: str, context: WeightsContext) -> None:
    """Raise unless the head reads the states and writes the tokens of the target."""
    model, vocab_size = context.target.model, context.target.vocab_size
    assert isinstance(model, Model)
    if spec.hidden != model.width:
        raise ModelError(
            f"{_FLAG}: this {architecture} reads hidden states of {spec.hidden} channels, and the "
            f"model has {model.width}. Give the head that was trained for this model."
        )
    if spec.vocab > vocab_size:
        raise ModelError(
            f"{_FLAG}: this {architecture} drafts {spec.vocab} tokens, and the model has "
            f"{vocab_size}. Give the head that was trained for this model."
        )


def _token_map(stored: dict[str, Stored]) -> Tensor:
    """The target's token of each of the head's, taken out of the tensors: int64 [any]; language
    heads of the whole vocabulary are cut to them."""
    ids = stored.pop("token_map", None)
    if not isinstance(ids, Tensor):
        raise ModelError(
            "The config of this draft head has a truncated vocabulary, and its checkpoint no "
            "token_map."
        )
    for name, tensor in stored.items():
        if "lm_head" in name and isinstance(tensor, Tensor) and len(tensor) > len(ids):
            stored[name] = tensor[ids.long()]
    return ids.long()
