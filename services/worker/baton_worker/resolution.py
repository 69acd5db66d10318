"""Settings resolved against device and model: every "auto" has become a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from baton.errors import SettingsError
from baton.logs import logger
from baton.protocol import PoolingInfo
from baton_worker import machine
from baton_worker.config import Config
from baton_worker.kernels.pages import CODES, Codes
from baton_worker.kv import bytes_per_page, window
from baton_worker.memory import choose_pages, free_bytes
from baton_worker.models import LoadedModel

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the model goes and in which precision: known before it is loaded."""

    device: torch.device
    dtype: torch.dtype
    threads: int
    """CPU threads of one tensor operation."""
    codes: Codes | None = None
    """What pages hold in place of numbers of `dtype`."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the engine is built from."""

    placement: Placement
    num_pages: int
    page_size: int
    page_bytes: int
    max_rows: int
    max_batch_tokens: int
    max_length: int
    vocab_size: int
    weight_bytes: int
    eos_ids: tuple[int, ...]
    pooling: PoolingInfo | None = None
    """What is given in place of text."""
    host_pages: int = 0
    """Pages in host memory beside those."""
    window: int = 0
    """How many of its last tokens a sequence sees; 0 means all."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.page_bytes

    @property
    def dtype_name(self) -> str:
        """Like "bfloat16"."""
        return str(self.placement.dtype).removeprefix("torch.")

    def __str__(self) -> str:
        """One line for the log: what every "auto" has become."""
        where = f"{self.placement.device}, {self.dtype_name}, {self.placement.threads} threads"
        pages = f"{self.num_pages} pages of {self.page_size} tokens ({self.kv_bytes >> 20} MiB)"
        pages += f" in {self.placement.codes}" if self.placement.codes else ""
        batch = f"{self.max_rows} rows, {self.max_batch_tokens} tokens a step"
        return f"{where}; {pages}; {batch}; sequences of at most {self.max_length} tokens"


def place(config: Config) -> Placement:
    """Choose device, precision and threads.

    Raises:
        SettingsError: a GPU was asked for and there is none.
    """
    has_gpu = torch.cuda.is_available()
    if config.device == "cuda" and not has_gpu:
        raise SettingsError("--device cuda: PyTorch sees no GPU here. Use --device cpu or auto.")
    device = torch.device("cuda" if has_gpu and config.device != "cpu" else "cpu")
    return Placement(
        device,
        _dtype(config, device),
        config.threads or machine.cores(),
        CODES.get(config.kv_cache_dtype),
    )


def _dtype(config: Config, device: torch.device) -> torch.dtype:
    if config.dtype != "auto":
        named: torch.dtype = getattr(torch, config.dtype)
        return named
    fast = device.type == "cuda" or machine.has_fast_bfloat16()
    return torch.bfloat16 if fast else torch.float32


def resolve(config: Config, placement: Placement, loaded: LoadedModel) -> Resolved:
    """Size the batch and the cache for a loaded model.

    Raises:
        SettingsError: more length was asked for than the model has, or no page fits.
    """
    wanted = config.max_length or loaded.max_length
    if wanted > loaded.max_length:
        raise SettingsError(
            f"--max-length {wanted}: this model was trained for {loaded.max_length} tokens."
        )
    page_bytes = bytes_per_page(loaded.spec, config.page_size, placement.dtype, placement.codes)
    # A text that is run whole is not cut to the step, so the step must hold the longest of them.
    only_whole = loaded.recipe is not None and loaded.recipe.whole and not loaded.generates
    max_batch_tokens = max(config.max_batch_tokens, wanted if only_whole else 0)
    on_cpu = placement.device.type == "cpu"
    budget = choose_pages(config, page_bytes, wanted, free_bytes(placement.device), on_cpu)
    if budget.max_length < wanted:
        log.warning(
            "%d KV pages hold sequences of at most %d tokens, not %d",
            budget.num_pages,
            budget.max_length,
            wanted,
        )
    return Resolved(
        placement=placement,
        num_pages=budget.num_pages,
        page_size=config.page_size,
        page_bytes=page_bytes,
        max_rows=config.max_rows,
        max_batch_tokens=max_batch_tokens,
        max_length=budget.max_length,
        vocab_size=loaded.vocab_size,
        weight_bytes=loaded.weight_bytes,
        eos_ids=loaded.eos_token_ids,
        pooling=_pooling(loaded, budget.max_length, max_batch_tokens - config.max_rows),
        host_pages=config.host_cache_bytes // page_bytes if page_bytes else 0,
        window=window(loaded.spec),
    )


def _pooling(loaded: LoadedModel, max_length: int, spare: int) -> PoolingInfo | None:
    """What is given in place of text. Whole texts beside running sequences must fit into what a
    step spares when all of these decode."""
    if loaded.recipe is None:
        return None
    if loaded.recipe.whole and loaded.generates:
        max_length = max(1, min(max_length, spare))
    return loaded.recipe.info(max_length, generates=loaded.generates)
