"""What layers are built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from baton.errors import SettingsError
from baton_worker.attention.call_stats import CallStats
from baton_worker.attention.context_parallel import Peers
from baton_worker.attention.selector import AttentionSelector
from baton_worker.config import Config
from baton_worker.kernels.kv_pages import CODES, KVCodes
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.kernels.page_layout import Layout
from baton_worker.platform import machine
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Device, precision, kernels and checkpoint conventions; known before a model is loaded."""

    device: torch.device
    dtype: torch.dtype
    name: Callable[[str], str] = str
    """Maps a role to its checkpoint name; the identity by default."""
    codes: KVCodes | None = None
    """The KV cache codes if the KV cache is quantised."""
    scaled: bool = False
    """Whether the checkpoint has the scales of these codes."""
    layout: Layout = Layout.NHD
    """The memory layout of a page."""
    attention: AttentionSelector = field(default_factory=AttentionSelector)
    """Chooses the backends of attention layers."""
    experts: ExpertKernelSelector = field(default_factory=ExpertKernelSelector)
    """Chooses the kernels of experts."""
    sampler: Sampler = field(default_factory=Sampler)
    """Draws tokens from the logits of what is built."""
    peers: Peers | None = None
    """Communication with the ranks that hold the other parts of the model."""
    threads: int = 1
    """CPU threads of one tensor operation."""

    @classmethod
    def from_config(cls, config: Config, rank: int = 0) -> BuildContext:
        """Resolve the settings for one rank.

        Raises:
            SettingsError: there is no such device here, or no such kernel.
        """
        device = _device(config, rank)
        return cls(
            device,
            _dtype(config, device),
            codes=CODES.get(config.kv_cache_dtype),
            layout=_layout(config, device),
            attention=AttentionSelector(
                config.attention_backend, CallStats() if config.runtime_stats else None
            ),
            experts=ExpertKernelSelector(config.moe_backend),
            sampler=Sampler(SamplerBackend.named(config.sampling_backend, device)),
            threads=max(1, (config.threads or machine.cores()) // config.tensor_parallel_size),
        )

    def empty(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter; the loader fills it or refuses the checkpoint."""
        data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return nn.Parameter(data, requires_grad=False)


def _device(config: Config, rank: int) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise SettingsError("--device cuda: PyTorch sees no GPU here. Use --device cpu or auto.")
    device = torch.device("cuda" if has_gpu and config.device != "cpu" else "cpu")
    ranks, group = config.tensor_parallel_size, config.data_parallel_size
    if device.type == "cpu" or max(ranks, group) == 1:
        return device
    _check_gpus("--tensor-parallel-size" if ranks > 1 else "--data-parallel-size", ranks * group)
    return torch.device("cuda", rank + config.data_parallel_rank)


def _check_gpus(flag: str, ranks: int) -> None:
    """Each rank needs a GPU of its own."""
    if torch.cuda.device_count() < ranks:
        raise SettingsError(
            f"{flag} {ranks}: PyTorch sees {torch.cuda.device_count()} GPUs here, and "
            "each rank needs one. Choose a smaller number."
        )


def _dtype(config: Config, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        named: torch.dtype = getattr(torch, config.dtype)
        return named
    fast = device.type == "cuda" or machine.has_fast_bfloat16()
    return torch.bfloat16 if fast else torch.float32


def _layout(config: Config, device: torch.device) -> Layout:
    if config.kv_cache_layout != "auto":
        return Layout(config.kv_cache_layout)
    return Layout.HND if device.type == "cpu" else Layout.NHD
