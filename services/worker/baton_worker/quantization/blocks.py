"""Checkpoints that `baton quantize` writes: blocks of our kernels, field by field.

Codes are packed without gaps, the lowest bits first, as uint8, or are whole bytes, int8; scales,
minima and steps are stored as a `BlockQuantized` has them. Tensors have the names and the layout
of the layers: nothing is fused, stacked or transposed. `scheme` is what the weights were rounded
to, and `kinds` gives the kind of each module, by its name with `*` in place of numbers, or by its
whole name where that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.config import Quantize
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.gptq import pack, unpack
from baton_worker.kernels.quantized_weights import BlockQuantized
from baton_worker.quantization.collect import Format, Formats, Parts
from baton_worker.quantization.methods import ONLINE
from baton_worker.spec import Decoder, Tower, TowerPair, VisionTower, WindowedTower
from baton_worker.spec.checkpoint import TensorLayout

METHOD = "baton"
SCHEMES: tuple[Quantize, ...] = tuple(name for name in get_args(Quantize) if name != "none")
"""Formats that weights are rounded to while they are loaded, by the names of the setting."""
_CODES = "weight.codes"
_BYTE = 8
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
T = TypeVar("T", VisionTower, WindowedTower)


def settings(scheme: Quantize, kinds: Mapping[str, str]) -> dict[str, Any]:
    """The `quantization_config` of weights of these kinds, by their names."""
    named = dict[str, str]()
    for weight, kind in kinds.items():
        module = weight.removesuffix(".weight")
        if named.setdefault(_pattern(module), kind) != kind:
            named[module] = kind
    return {"quant_method": METHOD, "scheme": scheme, "kinds": named}


def stored(name: str, blocks: BlockQuantized) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a weight, by the names that a checkpoint has for them."""
    kind = KINDS[blocks.kind]
    for field, part in blocks.parts():
        if field == "codes" and kind.bits < _BYTE:
            part = pack((part - kind.lowest).view(torch.uint8), kind.bits)
        yield f"{name}.{field}", part


def formats(settings: SimpleNamespace) -> Formats:
    """The format of each module.

    Raises:
        ModelError: a kind is unknown: a later version of Baton wrote the checkpoint.
    """
    kinds = vars(settings.kinds)
    if unknown := {*kinds.values()} - {*KINDS}:
        raise ModelError(
            f"This checkpoint holds weights of the kind {min(unknown)}, which this version of "
            "Baton does not have. Load it with the version that wrote it, or a later one."
        )
    by_kind = {kind: _format(kind) for kind in {*kinds.values()}}

    def of(module: str) -> Format | None:
        kind = kinds.get(module) or kinds.get(_pattern(module))
        return None if kind is None else by_kind[kind]

    return of


def scheme(config: SimpleNamespace) -> Quantize:
    """The format that the floats of a checkpoint are rounded to while it is loaded. Of ours that is
    a tied head, whose floats the embedding table needs; others may name a method that stores
    nothing."""
    settings = getattr(config, "quantization_config", None)
    if _is_ours(settings):
        own_scheme = getattr(settings, "scheme", "none")
        return cast(Quantize, own_scheme if own_scheme in SCHEMES else "none")
    named = getattr(settings, "quant_method", "none")
    return cast(Quantize, named if named in ONLINE else "none")


def as_stored(spec: Decoder, config: SimpleNamespace) -> Decoder:
    """The spec by which tensors are read: those of our checkpoints are split already."""
    if not _is_ours(getattr(config, "quantization_config", None)):
        return spec
    return replace(spec, tensors=_split(spec.tensors), tower=_stored_tower(spec.tower))


def _stored_tower(tower: Tower | None) -> Tower | None:
    if isinstance(tower, TowerPair) and isinstance(tower.vision, VisionTower):
        return replace(tower, vision=_split_tower(tower.vision))
    if isinstance(tower, VisionTower):
        return _split_tower(tower)
    return _split_tower(tower) if isinstance(tower, WindowedTower) else tower


def _split_tower(tower: T) -> T:
    return replace(tower, stack=replace(tower.stack, tensors=_split(tower.stack.tensors)))


def _is_ours(settings: SimpleNamespace | None) -> bool:
    return getattr(settings, "quant_method", None) == METHOD


def _split(layout: TensorLayout) -> TensorLayout:
    return replace(layout, fused=(), stacked=())


def _pattern(module: str) -> str:
    return _NUMBER.sub("*", module)


def _format(kind: str) -> Format:
    form = KINDS[kind]
    fields = {"codes", "scales"}
    if form.has_minimum:
        fields.add("minima")
    if form.super_group:
        fields |= {"scale_steps", "minimum_steps"} if form.has_minimum else {"scale_steps"}
    elif form.has_offset:
        fields.add("minimum_steps")
    return Format(frozenset(f"weight.{field}" for field in fields), partial(_read, kind))


def _read(kind: str, parts: Parts) -> BlockQuantized:
    form = KINDS[kind]
    fields = {name.removeprefix("weight."): part for name, part in parts.items()}
    if parts[_CODES].dtype is torch.uint8:
        fields["codes"] = unpack(parts[_CODES], form.bits).view(torch.int8) + form.lowest
    return _checked(BlockQuantized(kind, **fields))


def _checked(blocks: BlockQuantized) -> BlockQuantized:
    """Raises `ValueError` if scales are not those of the codes: kernels check no bounds."""
    form = KINDS[blocks.kind]
    rows, columns = blocks.shape
    wide = columns // (form.super_group or form.group)
    for name, part in blocks.parts():
        count = {"codes": columns, "scales": wide, "minima": wide}.get(name, columns // form.group)
        if part.shape != (rows, count):
            raise ValueError(f"{name} are {list(part.shape)}, not [{rows}, {count}]")
    return blocks
