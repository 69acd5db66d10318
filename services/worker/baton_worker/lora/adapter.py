"""An adapter in memory, as the layers of a model multiply it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.formats.mmap import opened
from baton_worker.kernels.lora import LoraPair
from baton_worker.lora.magnitudes import is_magnitude, with_magnitudes
from baton_worker.lora.module_scales import ModuleScales, module_scales
from baton_worker.lora.peft_config import PeftConfig
from baton_worker.lora.targets import LoraTargets, Whole

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight"
)
_TABLE = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_embedding_(?P<side>[AB])(?:\.default)?(?:\.weight)?"
)
_WHOLE = re.compile(
    r"(?:base_model\.model\.)?(?P<module>(?:(?!\.lora_).)+?)"
    r"(?:\.modules_to_save(?:\.default)?|\.base_layer)?\.weight"
)
_LISTED = 3
_Sides: TypeAlias = dict[str, dict[str, Tensor]]
"""Module -> side ("A" or "B") -> its matrix."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """The products of one adapter."""

    digest: bytes
    """Identity, 16 bytes: of the stored bytes and of the scales."""
    pairs: Mapping[str, LoraPair]
    """By module of the model; of an embedding table with A as [vocab, rank]."""
    wholes: Mapping[str, Whole] = field(default_factory=dict)
    """Weights in the place of the base's, by module of the model."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights in memory."""
        tensors = [t for pair in self.pairs.values() for t in (pair.a, pair.b, pair.magnitude)]
        products = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        return products + sum(whole.nbytes for whole in self.wholes.values())


def read_adapter(folder: Path, targets: LoraTargets, max_rank: int) -> Adapter:
    """Read a PEFT folder.

    Raises:
        ModelError: it is not a PEFT folder, or does not fit the model.
    """
    config, path = PeftConfig.read(folder), folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelError(f"{folder} has no adapter_model.safetensors; save it as safetensors.")
    try:
        with opened(path) as file:
            stored = {name: file.get_tensor(name) for name in sorted(file.keys())}
            _check_finite(folder, stored, targets)
            wholes = dict(_wholes(folder, stored, config, targets))
            scales = module_scales(config, _modules(stored))
            pairs = dict(_pairs(folder, stored, scales, targets, max_rank))
            pairs = with_magnitudes(folder, pairs, stored, config, targets)
        return Adapter(_digest(path, config), pairs, wholes)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error


def _check_finite(folder: Path, stored: Mapping[str, Tensor], targets: LoraTargets) -> None:
    """Every number is finite in the model's precision: one that is not spoils all logits."""
    for name, tensor in stored.items():
        if not bool(torch.isfinite(tensor.to(targets.like.dtype)).all()):
            kind = str(targets.like.dtype).removeprefix("torch.")
            raise ModelError(
                f"The adapter {folder} has numbers in {name} that are not finite in {kind}: save "
                "it again from before its training diverged."
            )


def _modules(stored: Iterable[str]) -> Iterator[str]:
    """The modules that have products, by names of tensors."""
    for name in stored:
        if (match := _NAME.fullmatch(name) or _TABLE.fullmatch(name)) is not None:
            yield from {match["module"], _stem(match["module"])}


def _stem(module: str) -> str:
    """A module without the layers that peft puts around its parameters."""
    return module.replace(".base_layer", "")


def _digest(path: Path, config: PeftConfig) -> bytes:
    digest = blake2b(config.canonical(), digest_size=16)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.digest()


def _pairs(
    folder: Path,
    stored: Mapping[str, Tensor],
    scales: ModuleScales,
    targets: LoraTargets,
    max_rank: int,
) -> Iterator[tuple[str, LoraPair]]:
    """The products of each module of the model."""
    sides, tables = _by_module(folder, stored)
    _check_known(folder, sides, targets)
    yield from _table_pairs(folder, tables, scales, targets, max_rank)
    for module, both in sides.items():
        a, b = _both(folder, module, both)
        if targets.holds_experts(module):
            yield from _expert_pairs(folder, module, (a, b), scales, targets, max_rank)
            continue
        _check_rank(folder, module, (a, b), scales, max_rank)
        a = _on_device(a, targets)
        for name, rows in targets.split(module, b):
            if (len(rows), a.shape[1]) != targets.shapes[name]:
                raise ModelError(
                    f"The adapter {folder} is of another model: {module} is {list(b.shape)} times "
                    f"{list(a.shape)} there, and {name} has {targets.shapes[name]} here."
                )
            yield name, LoraPair(a, _on_device(rows.T, targets), scales.scales[module])


def _by_module(folder: Path, stored: Mapping[str, Tensor]) -> tuple[_Sides, _Sides]:
    """The sides of each product, of linear layers and of embedding tables.

    Raises:
        ModelError: a tensor is neither, nor another that is served.
    """
    linears, tables = _Sides(), _Sides()
    for name, tensor in stored.items():
        match, of_table = _NAME.fullmatch(name), _TABLE.fullmatch(name)
        if match is not None:
            linears.setdefault(match["module"], {})[match["side"]] = tensor
        elif of_table is not None:
            tables.setdefault(of_table["module"], {})[of_table["side"]] = tensor
        elif _WHOLE.fullmatch(name) is None and not is_magnitude(name):
            raise ModelError(
                f"The adapter {folder} holds {name}: products of linear layers and embeddings are "
                "served, and whole embeddings and heads."
            )
    return linears, tables


def _both(folder: Path, module: str, sides: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    if len(sides) < 2:
        raise ModelError(f"The adapter {folder} has one half of the product of {module}.")
    if any(tensor.ndim != 2 for tensor in sides.values()):
        raise ModelError(f"The adapter {folder} has a product of {module} that is no matrix.")
    return sides["A"], sides["B"]


def _table_pairs(
    folder: Path,
    tables: Mapping[str, Mapping[str, Tensor]],
    scales: ModuleScales,
    targets: LoraTargets,
    max_rank: int,
) -> Iterator[tuple[str, LoraPair]]:
    """The product of the embedding table."""
    for module, sides in tables.items():
        name, (a, b) = targets.table_of(module), _both(folder, module, sides)
        if name is None:
            raise ModelError(f"The adapter {folder} adapts {module}, no table of this model.")
        _check_rank(folder, module, (a, b), scales, max_rank)
        _check_shape(folder, module, (a.shape[1], b.shape[0]), targets.table_shapes[name])
        yield (
            name,
            LoraPair(_on_device(a.T, targets), _on_device(b.T, targets), scales.scales[module]),
        )


def _expert_pairs(
    folder: Path,
    module: str,
    both: tuple[Tensor, Tensor],
    scales: ModuleScales,
    targets: LoraTargets,
    max_rank: int,
) -> Iterator[tuple[str, LoraPair]]:
    """The products of experts that a checkpoint stacks in one parameter (`target_parameters`)."""
    stem = _stem(module)
    stacked = list(targets.stacked(stem, *both)) if both[0].ndim == both[1].ndim == 2 else []
    if not stacked:
        raise ModelError(
            f"The adapter {folder} is of another model: {stem} has no parameter of experts that "
            f"{list(both[1].shape)} times {list(both[0].shape)} would fit."
        )
    for name, a, b in stacked:
        _check_rank(folder, stem, (a, b), scales, max_rank)
        yield (
            name,
            LoraPair(_on_device(a, targets), _on_device(b.T, targets), scales.scales[stem]),
        )


def _wholes(
    folder: Path, stored: Mapping[str, Tensor], config: PeftConfig, targets: LoraTargets
) -> Iterator[tuple[str, Whole]]:
    """The weights that replace those of the base: `modules_to_save`, and tables that peft saves
    beside their products."""
    modules = {name: match["module"] for name in stored if (match := _WHOLE.fullmatch(name))}
    for saved in config.modules_to_save:
        if not any(module == saved or module.endswith(f".{saved}") for module in modules.values()):
            raise ModelError(f"The adapter {folder} says that it saves {saved}, and does not.")
    for name, module in modules.items():
        shape = targets.whole_shape(module)
        if shape is None:
            raise ModelError(
                f"The adapter {folder} replaces {module}: only whole embeddings and heads are "
                "served beside others, by workers of one process. Merge it into its base."
            )
        _check_shape(folder, module, tuple(stored[name].shape), shape)
        yield targets.whole(module, _on_device(stored[name], targets))


def _check_shape(
    folder: Path, module: str, shape: tuple[int, ...], expected: tuple[int, int]
) -> None:
    if shape != expected:
        raise ModelError(
            f"The adapter {folder} is of another model: {module} is {shape} there, and {expected} "
            "here."
        )


def _check_known(folder: Path, modules: Mapping[str, object], targets: LoraTargets) -> None:
    """Every module is a layer that takes adapters."""
    strange = [m for m in modules if not (targets.takes(m) or targets.holds_experts(m))]
    if strange:
        some = ", ".join(strange[:_LISTED])
        rest = f" and {len(strange) - _LISTED} more" if len(strange) > _LISTED else ""
        raise ModelError(
            f"The adapter {folder} adapts {some}{rest}: no such layer of this model takes adapters "
            "(convolutions do not, nor routed experts on a GPU)."
        )


def _check_rank(
    folder: Path, module: str, both: tuple[Tensor, Tensor], scales: ModuleScales, max_rank: int
) -> None:
    a, b = both
    rank = scales.ranks[module]
    if a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank:
        raise ModelError(
            f"The adapter {folder} says rank {rank} of {module}, and stores {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    if rank > max_rank:
        raise ModelError(
            f"The adapter {folder} has rank {rank}, and --max-lora-rank is {max_rank}: raise it."
        )


def _on_device(tensor: Tensor, targets: LoraTargets) -> Tensor:
    """A copy as the kernels read it."""
    like = targets.like
    return tensor.to(like.device, like.dtype, copy=True, memory_format=torch.contiguous_format)
