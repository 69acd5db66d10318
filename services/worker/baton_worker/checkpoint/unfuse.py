"""Maps stored tensors to the tensors that the layers name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.row_reader import Rows
from baton_worker.checkpoint.unstack import Whole
from baton_worker.distributed.shard_weights import Destination
from baton_worker.spec import Decoder, Fused, VisionTower, WindowedTower
from baton_worker.spec.audio.tower_pair import towers
from baton_worker.spec.names import Names, placed


class Unfuse:
    """Splits fused tensors of a spec, drops rows that are not read, and restores the prefix of a
    body that was saved alone."""

    def __init__(self, spec: Decoder, wanted: Mapping[str, Destination]) -> None:
        self._wanted = wanted
        self._body = Names(spec.tensors.names)("embedding").split(".")[0]
        self._rules, self._longer = _rules(spec), spec.tensors.longer
        for tower in towers(spec.tower):
            if isinstance(tower, VisionTower | WindowedTower):
                self._rules |= _rules(tower.stack)

    def __call__(self, name: str, tensor: Whole) -> Iterator[tuple[str, Whole]]:
        """Split a stored tensor into one or several, views where that is possible.

        Raises:
            ModelError: the rows do not add up to those of the parts.
        """
        name = self._whole_name(name)
        module, _, suffix = name.rpartition(".")
        if module in self._longer and name in self._wanted:
            tensor = tensor[: self._wanted[name].shape[0]]
        if module not in self._rules:
            yield name, tensor
            return
        rule, names = self._rules[module]
        parts = [f"{names(role)}.{suffix}" for role in rule.parts]
        if all(part in self._wanted for part in parts):
            rows = [self._wanted[part].shape[0] for part in parts]
            yield from zip(parts, _split(rule, name, tensor, rows), strict=True)
        else:
            yield name, tensor

    def parts(self, module: str) -> list[str]:
        """The weights that a stored module becomes, by name."""
        name = self._whole_name(f"{module}.weight")
        fused = self._rules.get(name.removesuffix(".weight"))
        if fused is None:
            return [name]
        rule, names = fused
        return [f"{names(role)}.weight" for role in rule.parts]

    def outputs(self, module: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Split a tensor with a row for each output of a stored module, whichever way round that is
        stored.

        Raises:
            ModelError: the rows do not add up to those of the parts.
        """
        name = self._whole_name(f"{module}.weight")
        fused = self._rules.get(name.removesuffix(".weight"))
        stored = tensor.T if fused is not None and fused[0].transposed else tensor
        for part, rows in self(name, stored):
            assert isinstance(rows, Tensor), "tensors are split into tensors"
            yield part, rows

    def _whole_name(self, name: str) -> str:
        """`h.0.ln_1.weight` of a body saved without its head is `transformer.h.0.ln_1.weight`."""
        whole = f"{self._body}.{name}"
        is_fused = whole in self._wanted or whole.rpartition(".")[0] in self._rules
        return whole if is_fused and name not in self._wanted else name


def _rules(stack: Decoder) -> dict[str, tuple[Fused, Names]]:
    """The rule and the names of each fused tensor of a stack."""
    names = Names(stack.tensors.names)
    return {
        placed(rule.source, layer): (rule, names.at(layer))
        for rule in stack.tensors.fused
        for layer in range(len(stack.layers))
    }


def _split(rule: Fused, name: str, tensor: Whole, rows: list[int]) -> Iterator[Whole]:
    if isinstance(tensor, Rows) or (rule.transposed and not isinstance(tensor, Tensor)):
        # Groups run along the other axis of a quantised weight.
        tensor = tensor.dequantise()
    if rule.transposed and isinstance(tensor, Tensor) and tensor.ndim == 2:
        tensor = tensor.T
    if tensor.shape[0] != sum(rows):
        raise ModelError(
            f"Tensor {name} has {tensor.shape[0]} rows in the checkpoint, "
            f"but the config wants {' + '.join(map(str, rows))} ({', '.join(rule.parts)})."
        )
    numbers = torch.arange(sum(rows)).view(rule.groups, -1)
    for part in torch.split(numbers, [count // rule.groups for count in rows], dim=1):
        yield tensor[_as_slice(part.flatten())]


def _as_slice(numbers: Tensor) -> slice | Tensor:
    """Rows that lie one after the other as a slice: of these there are views."""
    first, count = int(numbers[0]) if len(numbers) else 0, len(numbers)
    alike = torch.equal(numbers, torch.arange(first, first + count))
    return slice(first, first + count) if alike else numbers
