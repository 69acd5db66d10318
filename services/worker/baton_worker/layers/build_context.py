"""The context that layers are built with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from baton.errors import SettingsError
from baton.logs import logger
from baton.process import nvidia
from baton_worker.attention.call_stats import CallStats
from baton_worker.attention.context_parallel import Peers
from baton_worker.attention.selector import AttentionSelector
from baton_worker.config import Config, Quantize
from baton_worker.device_keeper.bump_allocator import BumpAllocator
from baton_worker.kernels.kv_codes import CODES, KVCodes
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from baton_worker.kernels.page_layout import Layout
from baton_worker.platform import machine
from baton_worker.sampling import Sampler
from baton_worker.sampling.sampler_backend import SamplerBackend
from baton_worker.speculative.config import parse

log = logger(__name__)

_MOST_TOKENS = 2048
"""Tokens of a step, where the settings leave them open: at most so many."""
_EXACT_ROWS = 128
"""Rows of every product with --exact: as many as cost no more than one row where reading the
weights dominates."""
_NO_GPU = "PyTorch sees no GPU here."


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Device, precision, kernels and checkpoint conventions; known before a model is loaded."""

    device: torch.device
    dtype: torch.dtype
    name: Callable[[str], str] = str
    """Maps a role to its checkpoint name; the identity by default."""
    codes: KVCodes | None = None
    """The KV cache codes if the KV cache is quantised."""
    quantization: Quantize = "none"
    """Formats to which weights are rounded when they are loaded."""
    int8_inputs: bool = False
    """Whether inputs are rounded to 8-bit integers where the checkpoint's config defines that."""
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
    adapters: TokenAdapters | None = None
    """The adapter of each token, where adapters are served."""
    trees: bool = False
    """Whether the new tokens of a row may be a tree of drafts."""
    threads: int = 1
    """CPU threads of one tensor operation."""
    row_block: int = 0
    """Rows of every product on a GPU, see `kernels.linear.LinearSpec`."""
    staging: torch.device | None = None
    """Where weights that a kernel may take as a checkpoint stores them would be filled with floats;
    None is `device`. Memory of the host that nothing is written to costs nothing."""

    allocator: BumpAllocator | None = None
    """Where parameters on `device` lie; None is memory of this process."""

    @classmethod
    def from_config(cls, config: Config, rank: int = 0) -> BuildContext:
        """Resolve the settings for one rank.

        Raises:
            SettingsError: there is no such device here, or no such kernel.
        """
        device = device_of(config, rank)
        return cls(
            device,
            _dtype(config, device),
            codes=_codes(config, device),
            quantization=config.quantization,
            int8_inputs=_int8_inputs(config, device),
            layout=_layout(config, device),
            attention=AttentionSelector(
                config.attention_backend,
                CallStats() if config.runtime_stats else None,
                exact=config.exact,
            ),
            row_block=_EXACT_ROWS if config.exact and device.type == "cuda" else 0,
            experts=ExpertKernelSelector(config.moe_backend),
            sampler=Sampler(SamplerBackend.named(config.sampling_backend, device)),
            adapters=_adapters(config, device),
            trees=_drafts_trees(config),
            threads=max(1, (config.threads or machine.cores()) // config.num_ranks),
        )

    def under(self, prefix: str) -> BuildContext:
        """The same, for layers whose names begin with this prefix and a dot."""
        return replace(self, name=lambda part: self.name(f"{prefix}.{part}"))

    def staged(self, *shape: int) -> nn.Parameter:
        """An uninitialised weight on `staging`. Its layer moves it if no kernel takes another."""
        if self.staging is None:
            return self.empty(*shape)
        data = torch.empty(shape, dtype=self.dtype, device=self.staging)
        return nn.Parameter(data, requires_grad=False)

    def empty(self, *shape: int) -> nn.Parameter:
        """An uninitialised parameter; the loader fills it or refuses the checkpoint."""
        if self.allocator is not None:
            data = self.allocator.empty(shape, self.dtype)
        else:
            data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return nn.Parameter(data, requires_grad=False)


def _drafts_trees(config: Config) -> bool:
    speculative = parse(config.speculative_config)
    return speculative is not None and not speculative.tree.is_chain


def _adapters(config: Config, device: torch.device) -> TokenAdapters | None:
    if not config.enable_lora:
        return None
    most = max(config.max_num_batched_tokens, 2 * config.max_num_seqs, _MOST_TOKENS)
    return TokenAdapters(config.max_loras, most, device)


def _int8_inputs(config: Config, device: torch.device) -> bool:
    if config.int8_activations and device.type != "cpu":
        raise SettingsError(
            "--int8-activations: products of integers run on a CPU only; on a GPU weights of 8 "
            "bits are multiplied with inputs as they are."
        )
    if config.int8_activations and config.tensor_parallel_size > 1:
        raise SettingsError(
            "--int8-activations: ranks would round parts of a token by scales of their own, and "
            "tokens would depend on their number. Use --tensor-parallel-size 1, or more workers."
        )
    return config.int8_activations


def device_of(config: Config, rank: int = 0) -> torch.device:
    """The device of a rank.

    Raises:
        SettingsError: the rank has none.
    """
    if config.device == "cpu" or not _has_gpu(config):
        return torch.device("cpu")
    ranks, group = config.num_ranks, config.data_parallel_size
    numbers = _gpus(config.gpu) or range(ranks * group)
    if not config.gpu and len(numbers) == 1:
        return torch.device("cuda")
    flag = "--tensor-parallel-size" if ranks > 1 else "--data-parallel-size"
    if config.pipeline_parallel_size > 1:
        flag = "--tensor-parallel-size times --pipeline-parallel-size"
    _check_gpus("--gpu" if config.gpu else flag, numbers, ranks)
    return torch.device("cuda", numbers[rank if config.gpu else rank + config.data_parallel_rank])


def _has_gpu(config: Config) -> bool:
    """Whether PyTorch can use a GPU. Raises `SettingsError` if the settings require one and it
    cannot; warns if there is a GPU that cannot be used."""
    if torch.cuda.is_available():
        return True
    problem = nvidia.problem(torch.__version__, torch.version.cuda)
    if config.device == "cuda":
        raise SettingsError(f"--device cuda: {problem or _NO_GPU} Use --device cpu or auto.")
    if problem:
        _warn(problem)
    return False


@functools.cache
def _warn(problem: str) -> None:
    """Once: a standby resolves its device repeatedly."""
    log.warning("%s Running on the CPU; --device cpu says that this is meant.", problem)


def _gpus(numbers: str) -> list[int]:
    try:
        return [int(number) for number in numbers.split(",") if number]
    except ValueError as error:
        raise SettingsError(f"--gpu takes numbers by commas (got '{numbers}').") from error


def _check_gpus(flag: str, numbers: Sequence[int], ranks: int) -> None:
    """Each rank needs a GPU of its own that exists."""
    count = torch.cuda.device_count()
    if max(numbers) >= count or len(numbers) < ranks or len(set(numbers)) < len(numbers):
        raise SettingsError(
            f"{flag} {','.join(map(str, numbers)) if flag == '--gpu' else len(numbers)}: PyTorch "
            f"sees {count} GPUs here, and each of {ranks} ranks needs one of its own."
        )


def _dtype(config: Config, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        named: torch.dtype = getattr(torch, config.dtype)
        return named
    fast = device.type == "cuda" or machine.has_fast_bfloat16()
    return torch.bfloat16 if fast else torch.float32


def _codes(config: Config, device: torch.device) -> KVCodes | None:
    codes = CODES.get(config.kv_cache_dtype)
    return None if codes is None else codes.on(device)


def _layout(config: Config, device: torch.device) -> Layout:
    if config.kv_cache_layout != "auto":
        return Layout(config.kv_cache_layout)
    return Layout.HND if device.type == "cpu" else Layout.NHD
