"""Spec to modules: a table from spec type to layer class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from baton_worker import spec
from baton_worker.layers.attention.cross_attention import CrossAttention
from baton_worker.layers.attention.cross_layer import KVSharingSource, KVSharingTarget
from baton_worker.layers.attention.dual_chunk import DualChunk
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.attention.kv_reuse import (
    KeyAsValueAttention,
    KVReuse,
    NormedValueAttention,
)
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.attention.sparse_mla import SparseLatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.ffn.sparse_glu import SparseGlu
from baton_worker.layers.ffn.xielu import XieluMlp
from baton_worker.layers.mlp import Glu, Mlp
from baton_worker.layers.moe.megablocks import MegablocksExperts
from baton_worker.layers.moe.modality import ModalityMoe
from baton_worker.layers.moe.moe import Moe
from baton_worker.layers.moe.parallel import ParallelMoe
from baton_worker.layers.moe.shortcut import ShortcutMoe
from baton_worker.layers.shared_block import SharedAttention, SharedGlu
from baton_worker.layers.ssm.delta_net import DeltaNet
from baton_worker.layers.ssm.lightning_attention import LinearAttention
from baton_worker.layers.ssm.mamba import Mamba
from baton_worker.layers.ssm.mamba2 import StateSpace
from baton_worker.layers.ssm.selective_state_space import SelectiveStateSpace
from baton_worker.layers.ssm.short_conv import ShortConv
from baton_worker.layers.vision.bounded_linear import BoundedGlu
from baton_worker.models.block import STYLES, Absent, Joined, SharedTransformer
from baton_worker.models.decoder import Model
from baton_worker.models.draft.layer_head import LayerHeadModel
from baton_worker.spec.names import Names

LAYERS: dict[type, type[nn.Module]] = {
    spec.Attention: Attention,
    spec.CrossAttention: CrossAttention,
    spec.DualChunkAttention: DualChunk,
    spec.NormedValueAttention: NormedValueAttention,
    spec.KeyAsValueAttention: KeyAsValueAttention,
    spec.KVReuse: KVReuse,
    spec.KVSharingSource: KVSharingSource,
    spec.KVSharingTarget: KVSharingTarget,
    spec.SharedAttention: SharedAttention,
    spec.LatentAttention: LatentAttention,
    spec.SparseLatentAttention: SparseLatentAttention,
    spec.ShortConv: ShortConv,
    spec.LinearAttention: LinearAttention,
    spec.DeltaNet: DeltaNet,
    spec.StateSpace: StateSpace,
    spec.SelectiveStateSpace: SelectiveStateSpace,
    spec.Mamba: Mamba,
    spec.Glu: Glu,
    spec.SparseGlu: SparseGlu,
    spec.SharedGlu: SharedGlu,
    spec.BoundedGlu: BoundedGlu,
    spec.Mlp: Mlp,
    spec.XieluMlp: XieluMlp,
    spec.Moe: Moe,
    spec.ShortcutMoe: ShortcutMoe,
    spec.ParallelMoe: ParallelMoe,
    spec.ModalityMoe: ModalityMoe,
    spec.MegablocksExperts: MegablocksExperts,
}


def build(decoder: spec.Decoder, context: BuildContext) -> Model:
    """The modules of a spec with uninitialised parameters, named by the spec.

    Raises:
        ModelError: the rope kind or activation is unknown, or no attention backend accepts
            a layer or its page format.
    """
    names = Names(decoder.tensors.names)
    return Model(decoder, _blocks(decoder, names, context), replace(context, name=names))


def _blocks(decoder: spec.Decoder, names: Names, context: BuildContext) -> Iterator[nn.Module]:
    """The blocks in order; those of a `spec.SharedAttention` share weights."""
    owners = dict[int, SharedTransformer]()
    for layer, (mixer, ffn) in enumerate(decoder.layers):
        if decoder.stage is not None and layer not in decoder.stage.layers:
            yield Absent()
            continue
        block = _block(decoder, mixer, ffn, replace(context, name=names.at(layer)))
        if isinstance(mixer, spec.SharedAttention):
            assert isinstance(block, SharedTransformer)
            owner = owners.setdefault(mixer.block, block)
            if owner is not block:
                block.share(owner)
        yield block


def build_layer_head(
    head: spec.LayerHead, target: Model, context: BuildContext, first_layer: int
) -> LayerHeadModel:
    """The modules of a draft head; `first_layer` is the layer of the cache that is its first.
    Raises as `build`."""
    names = Names(head.decoder.tensors.names)
    blocks = [
        _head_block(head, layer, replace(context, name=names.at(layer)))
        for layer in range(len(head.decoder.layers))
    ]
    return LayerHeadModel(head, blocks, target, replace(context, name=names), first_layer)


def _head_block(head: spec.LayerHead, layer: int, context: BuildContext) -> nn.Module:
    decoder, (mixer, ffn) = head.decoder, head.decoder.layers[layer]
    if layer or not isinstance(head.inputs, spec.JoinedAttention):
        style = decoder.style if layer or head.first_norm else "unnormed"
        return _block(replace(decoder, style=style), mixer, ffn, context)
    assert type(mixer) is spec.Attention and ffn is not None
    attention = Attention(mixer, decoder.hidden, context, width=2 * decoder.hidden)
    after = LAYERS[type(ffn)](ffn, decoder.hidden, context)
    normed = head.inputs.residual_normed
    return Joined(decoder, attention, after, context, residual_normed=normed)


def _block(decoder: spec.Decoder, mixer: Any, ffn: Any, context: BuildContext) -> nn.Module:
    if isinstance(mixer, spec.CrossAttention):
        # It may run some tokens of a step, and adapter numbers are those of all of them.
        context = replace(context, adapters=None)
    parts = [
        None if part is None else LAYERS[type(part)](part, decoder.hidden, context)
        for part in (mixer, ffn)
    ]
    return STYLES[decoder.style](decoder, *parts, context)
