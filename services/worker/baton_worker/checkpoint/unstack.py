"""Splits stacked expert tensors into one tensor per expert and role, as views."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.quantization.mxfp4 import dequantise
from baton_worker.spec import (
    Decoder,
    Moe,
    ShortcutMoe,
    Stacked,
)
from baton_worker.spec.names import Names, placed


class Unstack:
    """Renames tensors and splits stacked ones."""

    def __init__(self, spec: Decoder) -> None:
        self._spec = spec
        self._renames = [(re.compile(pattern), to) for pattern, to in spec.renames]
        names, layers = Names(spec.names), range(len(spec.layers))
        self._corrections = {names.at(layer)("router_correction") for layer in layers}
        self._rules = dict[str, tuple[Stacked, int]]()
        self._scales = dict[str, str]()
        for rule in spec.stacked:
            for layer in layers:
                source = placed(rule.source, layer)
                # If two layers share a tensor, the first has the experts.
                self._rules.setdefault(source, (rule, layer))
                if rule.scales is not None:
                    self._scales[placed(rule.scales, layer)] = source
        self._waiting = dict[str, Tensor]()

    def __call__(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Split a stored tensor; an MXFP4 tensor waits for its scales or blocks.

        Raises:
            ModelError: the number of experts differs from the spec's.
        """
        for pattern, to in self._renames:
            name = pattern.sub(to, name)
        source = self._scales.get(name, name)
        if name in self._corrections:
            # One row for texts; beside images, a second one for these.
            yield name, tensor[0] if tensor.ndim > 1 else tensor
        elif source not in self._rules:
            yield name, tensor
        elif self._rules[source][0].scales is None:
            yield from self._taken_apart(source, tensor, None)
        elif source in self._waiting:
            other = self._waiting.pop(source)
            blocks, scales = (tensor, other) if name == source else (other, tensor)
            yield from self._taken_apart(source, blocks, scales)
        else:
            self._waiting[source] = tensor

    def _taken_apart(
        self, source: str, tensor: Tensor, scales: Tensor | None
    ) -> Iterator[tuple[str, Tensor]]:
        rule, layer = self._rules[source]
        ffn, names = self._spec.layers[layer][1], Names(self._spec.names).at(layer)
        moe = ffn.branch if isinstance(ffn, ShortcutMoe) else ffn
        count = moe.router.num_experts if isinstance(moe, Moe) else 0
        zero = moe.router.zero_experts if isinstance(moe, Moe) else 0
        if rule.flat and count and tensor.shape[0] % count == 0:
            tensor = torch.unflatten(tensor, 0, (count, -1))
        # Some checkpoints have rows for zero experts, too.
        if tensor.shape[0] not in (count, count + zero):
            raise ModelError(
                f"Tensor {source} holds {tensor.shape[0]} experts in the checkpoint, "
                f"but the config wants {count}."
            )
        for expert, share in enumerate(tensor[:count]):
            if scales is not None:
                share = dequantise(share, scales[expert])
            for role, part in zip(rule.parts, _parts(rule, share), strict=True):
                yield f"{names(role).format(expert=expert)}.{rule.suffix}", part


def _parts(rule: Stacked, share: Tensor) -> list[Tensor]:
    if rule.transposed:
        share = share.T
    count = len(rule.parts)
    if rule.interleaved:
        return [share[part::count] for part in range(count)]
    return list(share.chunk(count))
