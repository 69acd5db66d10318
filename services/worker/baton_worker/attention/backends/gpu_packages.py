"""Common code of backends that wrap third-party kernel packages for NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec

_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class GpuPackage:
    """A third-party package of kernels.

    Attributes:
        module: name to import.
        install: how to install it.
        capability: lowest compute capability that it supports.
        other: another name to import, of versions that lack the first.
    """

    module: str
    install: str
    capability: tuple[int, int]
    other: str = ""

    @property
    def found(self) -> str | None:
        """The name under which it is installed; None if it is not."""
        names = filter(None, (self.module, self.other))
        return next((name for name in names if _is_installed(name)), None)

    def refuses(self, call: AttentionSpec) -> str | None:
        """Why the package cannot run here, as half a sentence; None if it can."""
        if self.found is None:
            return f"{self.module} is not installed: {self.install}, or take triton"
        if call.device.type != "cuda" or torch.version.hip is not None:
            return "it needs an NVIDIA GPU"
        if (capability := torch.cuda.get_device_capability(call.device)) < self.capability:
            needed, actual = (".".join(map(str, pair)) for pair in (self.capability, capability))
            return f"it needs a GPU of compute capability {needed}, this one has {actual}"
        if call.dtype not in _DTYPES:
            return f"it has no kernel for {call.dtype}"
        return None

    def missing(self, function: str, arguments: frozenset[str]) -> str | None:
        """Why a function cannot be called with these arguments, as half a sentence: the package
        fails to load, or has another interface. None if it can."""
        name = self.found or self.module
        try:
            member = getattr(import_module(name), function, None)
        except (ImportError, OSError) as error:
            return f"{name} cannot be imported ({error}): {self.install} again, or take triton"
        lacks = arguments - signature(member).parameters.keys() if callable(member) else {function}
        if not lacks:
            return None
        names = ", ".join(sorted(lacks))
        return f"this version of {name} has no {names}: {self.install}, or take triton"


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # The package that it would be a part of.
        return False


def split(pages: Tensor, call: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Views of the keys and the values in the pages of a call: [num_pages, page_size, num_kv_heads,
    width] each, whatever the layout."""
    if call.latent or call.value_dim is not None:
        start = 0 if call.latent else call.head_dim
        plane = pages[:, :, 0]
        return plane[..., : call.head_dim], plane[..., start : start + call.width]
    return pages[:, :, 0], pages[:, :, 1]


def lengths(batch: AttentionBatch) -> npt.NDArray[np.int64]:
    """Number of keys of each row, int64 [B]."""
    return np.asarray(batch.num_computed, np.int64) + np.asarray(batch.query_lens, np.int64)


def ragged(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(group, index within its group) of each element of concatenated groups of `counts`
    elements."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Exclusive prefix sums of the counts: int32 [B + 1]."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
