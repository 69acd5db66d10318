"""Target layers of adapters: the linear layers of a model by module name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.distributed.shard_weights import Parts
from baton_worker.kernels.linear import LinearKernel
from baton_worker.kernels.lora import LoraPair
from baton_worker.layers.attention.mla import UpProjection
from baton_worker.layers.embedding import Table
from baton_worker.layers.linear import LanguageHead, Linear
from baton_worker.layers.moe.moe import Experts
from baton_worker.lora.shards import LoraShards
from baton_worker.models.decoder import Model
from baton_worker.spec import Decoder, Stacked
from baton_worker.spec.names import Names, placed

Whole: TypeAlias = Tensor | LinearKernel
"""A weight in the place of the base's: of a table as it is, of a head as its kernel."""


Announce: TypeAlias = Callable[[int, Mapping[str, LoraPair]], None]


class _Layer(NamedTuple):
    put: Callable[[int, Sequence[LoraPair | None]], None]
    """See `LoraKernel`."""
    parts: tuple[str, ...]


class LoraTargets:
    """The layers of a model that take adapters.

    Args:
        model: built with `BuildContext.adapters`.
        spec: what it was built from.
        parts: what this rank's layers are parts of, on several ranks.
        announce: puts what `put` is given into the slots of the other ranks.
    """

    def __init__(
        self,
        model: Model,
        spec: Decoder,
        parts: Parts | None = None,
        announce: Announce | None = None,
    ) -> None:
        self._layers = list[_Layer]()
        self._linears = dict[str, Linear]()
        """Module -> its layer, where that may have magnitudes."""
        self._shards = None if parts is None else LoraShards(parts)
        self._announce = announce
        self.shapes = dict[str, tuple[int, int]]()
        """Module -> rows and columns of its weight, on all ranks together."""
        self.tables: dict[str, Table] = {}
        """Module -> the embedding table; an adapter may replace it or add rows."""
        self.heads: dict[str, LanguageHead] = {}
        """Module -> the head; an adapter may replace it."""
        self._eager = set[str]()
        """Modules whose steps are not captured."""
        self._adapters = model.adapters
        self.like: Tensor = torch.empty(0)
        """A tensor on the device and of the dtype of the products' inputs."""
        self._experts = list[Experts]()
        self._add_layers(model)
        self.table_shapes = {name: table.shape for name, table in self.tables.items()}
        """Module -> rows and columns of an embedding table, on all ranks together."""
        self._own = self.shapes | self.table_shapes
        """Module -> rows and columns of its weight on this rank."""
        if self._shards is not None:
            self._set_full_shapes(self._shards)
        self._stacks = _stacks(spec)
        self._renames = [(re.compile(pattern), to) for pattern, to in spec.tensors.renames]
        self._unfuse = _unfuse(spec, self.shapes)

    def _add_layers(self, model: Model) -> None:
        for layer in model.layers():
            if isinstance(layer, Table) and layer.lora is not None:
                self.tables[layer.name] = layer
            if isinstance(layer, Linear | UpProjection) and layer.lora is not None:
                self._add_linear(layer)
        self._experts += [layer for layer in model.layers() if isinstance(layer, Experts)]
        for experts in self._experts:
            self._add_experts(experts)

    def _add_linear(self, layer: Linear | UpProjection) -> None:
        assert layer.lora is not None
        rows_of = layer.lora_parts
        if isinstance(layer, LanguageHead):
            self.heads |= dict.fromkeys(rows_of, layer)
        if isinstance(layer, UpProjection):
            self._eager |= {*rows_of}
            self._layers.append(_Layer(layer.lora.put, tuple(rows_of)))
        else:
            self._linears |= dict.fromkeys(rows_of, layer)
            self._layers.append(_Layer(layer.put_adapter, tuple(rows_of)))
        self.shapes |= {name: (n, layer.in_features) for name, n in rows_of.items()}
        assert layer.like is not None
        self.like = layer.like

    def _add_experts(self, experts: Experts) -> None:
        for kernel, rows_of, columns in experts.lora_layers():
            self._layers.append(_Layer(kernel.put, tuple(rows_of)))
            self.shapes |= {name: (rows, columns) for name, rows in rows_of.items()}
            self.like = experts.like

    def _set_full_shapes(self, shards: LoraShards) -> None:
        """Replace shapes by those on all ranks together, which adapters have. Layers that are cut
        by columns sum over ranks."""
        if len(self.tables) == len(self.heads) == 1:  # A tied head has the table's weight.
            [[table], [head]] = self.tables, self.heads
            shards.whole.setdefault(head, shards.whole[table])
        self.shapes = {name: shards.whole[name] for name in self.shapes}
        self.table_shapes = {name: shards.whole[name] for name in self.tables}
        for name, linear in self._linears.items():
            if self._own[name][1] != self.shapes[name][1]:
                linear.sum_over_ranks = shards.total

    def takes(self, module: str) -> bool:
        """True if a module of a checkpoint takes adapters."""
        parts = self._unfuse.parts(self._renamed(module))
        return all(name.removesuffix(".weight") in self.shapes for name in parts)

    def magnitude_blocker(self, module: str) -> str | None:
        """Why a module of the model cannot have magnitudes (DoRA), as half a sentence; None if it
        can."""
        return None if module in self._linears else "only linear layers have them"

    def split(self, module: str, rows: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The modules of the model that a module of a checkpoint is, each with its share of a
        tensor [out_features, ...].

        Raises:
            ModelError: the rows are not those of its parts.
        """
        for name, part in self._unfuse.outputs(self._renamed(module), rows):
            yield name.removesuffix(".weight"), part

    def _renamed(self, module: str) -> str:
        """The module under the names of the model."""
        name = f"{module}.weight"
        for pattern, to in self._renames:
            name = pattern.sub(to, name)
        return name.removesuffix(".weight")

    def holds_experts(self, module: str) -> bool:
        """True if a module of a checkpoint has experts in stacked parameters. With several of them
        peft stores all but the last under `base_layer`."""
        name = self._renamed(module.replace(".base_layer", ""))
        return name in self._stacks and any(self.shapes_of(name))

    def shapes_of(self, module: str) -> Iterator[tuple[int, int]]:
        """Rows and columns of the parts of the first expert of a module, if these take adapters."""
        for stack, names in self._stacks[module]:
            parts = (names(role).format(expert=0) for role in stack.parts)
            yield from (self.shapes[part] for part in parts if part in self.shapes)

    def stacked(self, module: str, a: Tensor, b: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The products of stacked experts, as peft stores those of a parameter: A [experts * rank,
        columns] and B [rows, rank * experts], experts varying fastest. Yields the modules of the
        model, each with its A [rank, columns] and B [rows, rank]; nothing if a module has no stack
        of this shape."""
        for stack, names in self._stacks.get(self._renamed(module), ()):
            parts = [names(role).format(expert=0) for role in stack.parts]
            if not all(part in self.shapes for part in parts):
                continue
            rows, columns = sum(self.shapes[part][0] for part in parts), self.shapes[parts[0]][1]
            if (rows, columns) != (len(b), a.shape[1]):
                continue
            count = sum(
                names(stack.parts[0]).format(expert=n) in self.shapes for n in range(len(a))
            )
            each = torch.unflatten(b, 1, (-1, count))
            for expert, own in enumerate(torch.unflatten(a, 0, (count, -1))):
                shares = _shares(stack, each[..., expert])
                for role, share in zip(stack.parts, shares, strict=True):
                    yield names(role).format(expert=expert), own, share

    def whole_shape(self, module: str) -> tuple[int, int] | None:
        """Rows and columns of a module that an adapter may replace; None if it may not."""
        name = self._renamed(module)
        if self._shards is not None:
            return None
        if name in self.tables:
            return self.tables[name].shape
        return self.shapes[name] if name in self.heads else None

    def table_of(self, module: str) -> str | None:
        """The embedding table that a module of a checkpoint is; None if it is none."""
        name = self._renamed(module)
        return name if name in self.tables else None

    def whole(self, module: str, weight: Tensor) -> tuple[str, Whole]:
        """The module of the model, and what `put` takes for a weight of its `whole_shape`."""
        name = self._renamed(module)
        return name, self.heads[name].whole(weight) if name in self.heads else weight

    def put(
        self,
        slot: int,
        pairs: Mapping[str, LoraPair],
        wholes: Mapping[str, Whole] = MappingProxyType({}),
    ) -> None:
        """Adapter number `slot` has these products and whole weights from now on; between two
        steps."""
        if self._announce is not None:
            self._announce(slot, pairs)
        if self._shards is not None:
            pairs = {name: self._cut(name, pair) for name, pair in pairs.items()}
        for layer in self._layers:
            layer.put(slot, [pairs.get(name) for name in layer.parts])
        for experts in self._experts:
            if experts.lora is not None:
                names = (name for _, parts, _ in experts.lora_layers() for name in parts)
                experts.lora.mark(slot, any(name in pairs for name in names))
        for name, table in self.tables.items():
            whole = wholes.get(name)
            assert table.lora is not None and (whole is None or isinstance(whole, Tensor))
            table.lora.put(slot, whole, pairs.get(name))
        for name, head in self.heads.items():
            kernel = wholes.get(name)
            assert not isinstance(kernel, Tensor)
            head.put_whole(slot, kernel)
        if self._adapters is not None:
            special = bool(wholes) or not self._eager.isdisjoint(pairs)
            special = special or not self.tables.keys().isdisjoint(pairs)
            special = special or any(self._linears[n].is_eager(slot) for n in self._linears)
            self._adapters.eager.discard(slot)
            self._adapters.eager |= {slot} if special else set()

    def _cut(self, name: str, pair: LoraPair) -> LoraPair:
        assert self._shards is not None
        cut = self._shards.cut_table if name in self.tables else self._shards.cut
        return cut(name, pair, self._own[name])


def _stacks(spec: Decoder) -> dict[str, list[tuple[Stacked, Names]]]:
    """The stacked tensors of each module that holds experts, with the names of its layer."""
    stacks = defaultdict[str, list[tuple[Stacked, Names]]](list)
    names = Names(spec.tensors.names)
    for layer in range(len(spec.layers)):
        for stack in spec.tensors.stacked:
            if stack.suffix == "weight":
                module = placed(stack.source, layer).rpartition(".")[0]
                stacks[module].append((stack, names.at(layer)))
    return dict(stacks)


def _shares(stack: Stacked, rows: Tensor) -> Sequence[Tensor]:
    """Rows [all parts, ...] of one expert, by part."""
    count = len(stack.parts)
    if stack.interleaved:
        return [rows[part::count] for part in range(count)]
    return rows.chunk(count)


def _unfuse(spec: Decoder, shapes: Mapping[str, tuple[int, int]]) -> Unfuse:
    """The parts of a checkpoint's modules among modules of these shapes."""
    return Unfuse(
        spec, {f"{n}.weight": torch.empty(shape, device="meta") for n, shape in shapes.items()}
    )
