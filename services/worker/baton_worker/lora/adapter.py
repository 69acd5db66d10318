"""An adapter in memory, as the layers of a model multiply it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.mmap import opened
from baton_worker.kernels.lora import LoraPair
from baton_worker.lora.peft_config import PeftConfig
from baton_worker.lora.targets import LoraTargets

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight"
)
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Adapter:
    """The products of one adapter."""

    digest: bytes
    """Identity, 16 bytes: of the stored bytes and of the scales."""
    pairs: Mapping[str, LoraPair]
    """By module of the model."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights in memory."""
        return sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs.values())


def read_adapter(folder: Path, targets: LoraTargets, max_rank: int) -> Adapter:
    """Read a PEFT folder.

    Raises:
        ModelError: it is not a PEFT folder, or does not fit the model; the message says why.
    """
    config, path = PeftConfig.read(folder), folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelError(f"{folder} has no adapter_model.safetensors; save it as safetensors.")
    try:
        with opened(path) as file:
            stored = {name: file.get_tensor(name) for name in sorted(file.keys())}
            pairs = dict(_pairs(folder, stored, config, targets, max_rank))
        return Adapter(_digest(path, config), pairs)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error


def _digest(path: Path, config: PeftConfig) -> bytes:
    digest = blake2b(config.canonical(), digest_size=16)
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.digest()


def _pairs(
    folder: Path,
    stored: Mapping[str, Tensor],
    config: PeftConfig,
    targets: LoraTargets,
    max_rank: int,
) -> Iterator[tuple[str, LoraPair]]:
    """The products of each module of the model."""
    sides = dict[str, dict[str, Tensor]]()
    for name, tensor in stored.items():
        found = _NAME.fullmatch(name)
        if found is None:
            raise ModelError(
                f"The adapter {folder} holds {name}: only products of linear layers (lora_A and "
                "lora_B) are served, no embeddings and no whole weights."
            )
        sides.setdefault(found["module"], {})[found["side"]] = tensor
    _check_known(folder, sides, targets)
    for module, both in sides.items():
        if len(both) < 2:
            raise ModelError(f"The adapter {folder} has one half of the product of {module}.")
        a, b = both["A"], both["B"]
        _check_rank(folder, module, (a, b), config, max_rank)
        a = _kept(a, targets)
        for name, rows in targets.split(module, b):
            if (len(rows), a.shape[1]) != targets.shapes[name]:
                raise ModelError(
                    f"The adapter {folder} is of another model: {module} is {list(b.shape)} times "
                    f"{list(a.shape)} there, and {name} has {targets.shapes[name]} here."
                )
            yield name, LoraPair(a, _kept(rows.T, targets), config.scale_of(module))


def _check_known(folder: Path, modules: Mapping[str, object], targets: LoraTargets) -> None:
    """Every module is a layer that takes adapters."""
    strange = [module for module in modules if not targets.takes(module)]
    if strange:
        some = ", ".join(strange[:_LISTED])
        rest = f" and {len(strange) - _LISTED} more" if len(strange) > _LISTED else ""
        raise ModelError(
            f"The adapter {folder} adapts {some}{rest}: no such layer of this model takes adapters "
            "(routed experts, embeddings, convolutions and absorbed projections do not)."
        )


def _check_rank(
    folder: Path, module: str, both: tuple[Tensor, Tensor], config: PeftConfig, max_rank: int
) -> None:
    a, b = both
    rank = config.rank_of(module)
    if a.ndim != 2 or b.ndim != 2 or not len(a) == b.shape[1] == rank:
        raise ModelError(
            f"The adapter {folder} says rank {rank} of {module}, and stores {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    if rank > max_rank:
        raise ModelError(
            f"The adapter {folder} has rank {rank}, and --max-lora-rank is {max_rank}: raise it."
        )


def _kept(tensor: Tensor, targets: LoraTargets) -> Tensor:
    """A copy as the kernels read it."""
    like = targets.like
    return tensor.to(like.device, like.dtype, copy=True, memory_format=torch.contiguous_format)
