"""Checkpoints of trained draft heads: which head, its method, and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from baton.checkpoint.hub import resolve as fetch
from baton.checkpoint.json_file import readable_fields
from baton.errors import ModelError, SettingsError
from baton.registry import Registry
from baton_worker.checkpoint.checkpoint_context import staging
from baton_worker.checkpoint.fill import fill
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.unstack import Stored
from baton_worker.config import Config, Quantize
from baton_worker.kv_cache import group_bytes, one_group
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.build import build_layer_head
from baton_worker.models.decoder import Model
from baton_worker.models.draft.layer_head import LayerHeadModel
from baton_worker.models.draft.medusa import Medusa
from baton_worker.models.draft.mlp_speculator import MlpSpeculatorModel
from baton_worker.models.draft.state_head import StateHead
from baton_worker.models.families.draft_common import DRAFT_HEADS, METHODS, WITHIN, Target
from baton_worker.spec import (
    Decoder,
    DraftHead,
    Ffn,
    Fusion,
    Head,
    JoinedAttention,
    LayerHead,
    MedusaHeads,
    Mixer,
    MlpSpeculator,
    Norm,
)
from baton_worker.spec.hf_config import read_config
from baton_worker.speculative.proposer import DraftWeights, WeightsContext

HEADS = Registry("draft heads", DRAFT_HEADS)
_FLAG = "--speculative-config"
_KINDS = {"medusa": "MedusaModel", "mlp_speculator": "MLPSpeculatorPreTrainedModel"}
"""Architecture by `model_type`, of configs that name none."""


STATE_HEADS = ("medusa", "mlp_speculator")
"""Methods of heads without KV."""
LAYER_HEADS = ("mtp", "eagle", "eagle3", "eagle3_two_model")
"""Methods of heads with layers of their own."""
_TWO_MODEL = "_two_model"
"""End of the methods of heads whose KV is in pages of their own, not in those of the target."""


class HeadConfig(NamedTuple):
    """A head's config.json."""

    architecture: str
    fields: SimpleNamespace


def head_config(path: Path, method: str = "") -> HeadConfig:
    """The kind of head in a checkpoint; EAGLE heads may be named like full models.

    Raises:
        ModelError: it is none of the supported kinds.
    """
    config = read_config(path)
    names = _names(config)
    method = method.removesuffix(_TWO_MODEL)
    if method in ("eagle", "eagle3"):
        names = [f"{method.capitalize()}{name}" for name in names] + names
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
    if getattr(config, "draft_vocab_size", None):
        named += [f"Eagle3{name}" for name in named]
    if kind := _KINDS.get(getattr(config, "model_type", "")):
        named.append(kind)
    return named


@dataclass(frozen=True, slots=True)
class StateHeadWeights(DraftWeights):
    """A head that keeps no KV."""

    head: StateHead


@dataclass(frozen=True, slots=True)
class LayerHeadWeights(DraftWeights):
    """A head with layers of its own."""

    head: LayerHeadModel
    further: tuple[LayerHeadModel, ...] = ()
    """The layers that make the drafts after the first, if that is not the head itself."""


def load_draft_head(context: WeightsContext) -> DraftWeights:
    """Load the head that `--speculative-config` names. The target shows its hidden states from here
    on.

    Raises:
        HubError: there is no such checkpoint.
        ModelError: it is damaged, or not that of a head for this target.
        SettingsError: the method is another one, or the target has no hidden states to show.
    """
    config, model = context.config, context.target.model
    path, head = _head_checkpoint(context)
    method = METHODS[head.architecture]
    if config.method.removesuffix(_TWO_MODEL) not in ("draft_model", method):
        raise SettingsError(
            f"{_FLAG}: {path} holds a {head.architecture}, whose method is {method}, not "
            f"{config.method}."
        )
    if not isinstance(model, Model):
        raise SettingsError(f"{_FLAG}: {method} reads hidden states that this model does not show.")
    spec = _spec(head, context)
    _check_fit(spec, head.architecture, context)
    model.draft_inputs = spec.reads if isinstance(spec, LayerHead) else ()
    if isinstance(spec, LayerHead):
        return _layer_head(spec, head, path, context)
    return _state_head(spec, head, path, context)


def follow_layer_head(context: WeightsContext) -> DraftWeights:
    """A rank's part of the layer head that the first one runs: as many pages for its KV, so that
    pages are alike on all of them. Raises as `load_draft_head`."""
    assert isinstance(context.target.model, Model)
    context.target.model.draft_inputs = ()  # As on the first rank, whose logits all compute.
    _, head = _head_checkpoint(context)
    spec = _spec(head, context)
    if not isinstance(spec, LayerHead) or context.config.method.endswith(_TWO_MODEL):
        return DraftWeights(0)
    return DraftWeights(0, layers=_layers(_used(spec, context)))


def _spec(head: HeadConfig, context: WeightsContext) -> DraftHead:
    """The spec of a head. Raises `ModelError` if its config is not that of one for this target."""
    with readable_fields(f"the config of this {head.architecture}"):
        spec: DraftHead = HEADS.load(head.architecture)(head.fields, _target(context))
    return spec


def _head_checkpoint(context: WeightsContext) -> tuple[Path, HeadConfig]:
    """The checkpoint of the head and its config: for `mtp` without a model the target's."""
    config, target = context.config, context.target.config
    if config.model:
        path = fetch(context.settings.model_copy(update={"model": config.model}))
        return path, head_config(path, config.method)
    named: list[str] = getattr(target, "architectures", None) or []
    for name in named:
        if name in WITHIN and context.target_path.is_dir():
            return context.target_path, HeadConfig(WITHIN[name], target)
    raise ModelError(
        f"{_FLAG}: Baton knows no multi-token prediction in a checkpoint of "
        f"{', '.join(named) or 'this model'}. Known: {', '.join(sorted(WITHIN))}."
    )


def _layer_head(
    spec: LayerHead, head: HeadConfig, path: Path, context: WeightsContext
) -> LayerHeadWeights:
    is_two_model = context.config.method.endswith(_TWO_MODEL)
    first_layer = 0 if is_two_model else len(context.target.spec.layers)
    specs = _used(spec, context)
    made, *further = (
        _layer_module(one, head, path, context, first_layer + number)
        for number, one in enumerate(specs)
    )
    if not is_two_model:
        return LayerHeadWeights(
            0,
            made,
            tuple(further),
            method=METHODS[head.architecture],
            most=len(specs) if spec.further else 0,
            layers=_layers(specs),
        )
    page, build = context.settings.block_size, _context(head, context)
    groups = one_group(spec.decoder, page)
    page_bytes = group_bytes(spec.decoder, groups, page, build.dtype, build.codes)
    return LayerHeadWeights(page_bytes, made, method=context.config.method)


def _used(spec: LayerHead, context: WeightsContext) -> tuple[LayerHead, ...]:
    """The heads that make drafts, of one that may have others behind it."""
    return (spec, *spec.further)[: len(context.config.tree.widths)]


def _layers(specs: Sequence[LayerHead]) -> tuple[tuple[Mixer | None, Ffn | None], ...]:
    return tuple(layer for one in specs for layer in one.decoder.layers)


def _layer_module(
    spec: LayerHead, head: HeadConfig, path: Path, context: WeightsContext, first_layer: int
) -> LayerHeadModel:
    model = context.target.model
    assert isinstance(model, Model)
    stored = {
        name: tensor
        for name, tensor in open_checkpoint(path).tensors(spec.decoder)
        if not spec.prefixes or name.startswith(spec.prefixes)
    }
    if not stored:
        raise ModelError(f"{_FLAG}: {path} has no tensors of a {head.architecture}.")
    spec, token_ids = _as_stored(spec, stored)
    if not spec.own_embedding and spec.hidden != model.width:
        raise ModelError(
            f"{_FLAG}: this {head.architecture} embeds with {spec.hidden} channels, and the model "
            f"with {model.width}. Give the head that was trained for this model."
        )
    if context.tables is not None and not (spec.own_embedding and spec.own_head):
        model = context.tables()
    module = build_layer_head(spec, model, _context(head, context), first_layer)
    if token_ids is not None:
        module.token_ids = token_ids.to(context.build.device)
    fill(module, iter(stored.items()), spec.decoder, _quantization(context))
    return module.eval()


def _as_stored(spec: LayerHead, stored: dict[str, Stored]) -> tuple[LayerHead, Tensor | None]:
    """The spec with what only the tensors tell, and the target's token of each of the head's, if it
    has tokens of its own; takes these out of the tensors."""
    names = {name.removeprefix("model.") for name in stored}
    if isinstance(spec.inputs, Fusion) and "fc.bias" in names:
        spec = replace(spec, inputs=replace(spec.inputs, bias=True))
    if isinstance(spec.inputs, JoinedAttention) and "embed_tokens.weight" in names:
        spec = replace(spec, own_embedding=True)
    stored.pop("t2d", None)
    offsets = stored.pop("d2t", None)
    if isinstance(offsets, Tensor):
        return spec, offsets.long() + torch.arange(len(offsets))
    if spec.target_vocab and spec.vocab < spec.target_vocab:
        raise ModelError(
            f"{_FLAG}: this head drafts {spec.vocab} tokens of its own, and its checkpoint has no "
            "d2t, which says what they are."
        )
    return spec, None


def _state_head(
    spec: MedusaHeads | MlpSpeculator, head: HeadConfig, path: Path, context: WeightsContext
) -> StateHeadWeights:
    module = _MODULES[type(spec)](spec, _context(head, context))
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


def _context(head: HeadConfig, context: WeightsContext) -> BuildContext:
    """The build context of the layers of a head: the target's, for one process."""
    return replace(
        context.build,
        dtype=context.target.model.dtype,
        quantization=_quantization(context),
        peers=None,
        adapters=None,
        scaled=False,
        trees=False,
        staging=staging(head.fields),
    )


def _check_fit(spec: DraftHead, architecture: str, context: WeightsContext) -> None:
    """Raise unless the head reads the states and writes the tokens of the target."""
    model, vocab_size = context.target.model, context.target.vocab_size
    assert isinstance(model, Model)
    reads_last = not (isinstance(spec, LayerHead) and spec.reads)
    if reads_last and spec.hidden != model.width:
        raise ModelError(
            f"{_FLAG}: this {architecture} reads hidden states of {spec.hidden} channels, and the "
            f"model has {model.width}. Give the head that was trained for this model."
        )
    drafted = max(spec.vocab, 0 if isinstance(spec, MlpSpeculator) else spec.target_vocab)
    if drafted > vocab_size:
        raise ModelError(
            f"{_FLAG}: this {architecture} drafts {drafted} tokens, and the model has "
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
