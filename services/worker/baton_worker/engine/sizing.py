"""Sizes of the batch and of the KV cache for a loaded model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from baton.errors import SettingsError
from baton.kv.page_groups import PageGroups
from baton.logs import logger
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.device_keeper.messages import Found
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.distributed.step_sync import StepSync
from baton_worker.engine import exactness
from baton_worker.engine.memory import PageBudget, choose_pages, free_for_all
from baton_worker.engine.memory_profile import MemoryProfile, Trial
from baton_worker.graphs import Sizes
from baton_worker.kv_cache import (
    LayerGroups,
    bytes_per_cross_page,
    group_bytes,
    held_groups,
    one_group,
    page_groups,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.platform.device_memory import DeviceMemory, device_memory
from baton_worker.spec import Decoder

log = logger(__name__)

_ON_CPU, _ON_GPU = 512, 2048
"""Most tokens of a step."""
_TAPED = 512
"""Most tokens of a step that is replayed on a CPU: a larger one spends its time in kernels."""


class StepLimits(NamedTuple):
    """Limits of a step and of a sequence, see `EngineConfig`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class PageBytes(NamedTuple):
    """Bytes of a page."""

    by_rank: list[int]
    draft: int
    """Of a page of the drafter, on all ranks together."""

    @property
    def target(self) -> int:
        """Of a page of the target, on all ranks together."""
        return sum(self.by_rank)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Sizes of the batch and of the cache. All ranks call its methods, in the same order."""

    config: Config
    build: BuildContext
    loaded: LoadedModel
    ranks: Communicator
    memory: DeviceMemory | None
    groups: LayerGroups

    @property
    def on_cpu(self) -> bool:
        """Whether the model runs on the CPU."""
        return self.build.device.type == "cpu"

    @property
    def encoder_cache_bytes(self) -> int:
        """See `EngineConfig`."""
        return self.config.encoder_cache_bytes if self.loaded.spec.tower is not None else 0

    def limits(self) -> StepLimits:
        """The limits of the settings. Raises `SettingsError` for those that the model exceeds."""
        config, loaded = self.config, self.loaded
        longest = _longest(config, loaded)
        exactness.check(config, self.build.device, loaded)
        tokens = batch_tokens(config, loaded, longest, self.on_cpu)
        return StepLimits(config.max_num_seqs, tokens, longest)

    def page_bytes(self) -> PageBytes:
        """Gathered from all ranks."""
        build, device = self.build, self.build.device
        page = (self.config.block_size, build.dtype, build.codes)
        local = group_bytes(self.loaded.kv_spec, self.groups, *page)
        by_rank = numbers(self.ranks, local, device)
        return PageBytes(by_rank, _draft_page_bytes(self.loaded, self.ranks, device))

    def weight_bytes(self) -> int:
        """Of all ranks together."""
        return sum(numbers(self.ranks, self.loaded.weight_bytes, self.build.device))

    def profile(
        self, limits: StepLimits, lockstep: StepSync | None, graphs: Sizes | None
    ) -> MemoryProfile:
        """Bytes of the largest step and of these graphs on a GPU."""
        memory = self.memory or device_memory(self.build.device)
        if memory is None:
            return MemoryProfile()
        trial = Trial(self.groups, *limits, self.config.block_size)
        return trial.profile(self.build, self.loaded, self.ranks, lockstep, memory, graphs)

    def budget(
        self, limits: StepLimits, page_bytes: PageBytes, leased: Found, profile: MemoryProfile
    ) -> PageBudget:
        """Pages of the cache: as many as are `leased`, if any are."""
        config, max_model_len = self.config, limits.max_model_len
        if leased.num_pages:
            config = config.model_copy(update={"num_gpu_blocks_override": leased.num_pages})
        budget = choose_pages(
            config,
            page_bytes.target + page_bytes.draft,
            max_model_len,
            self._free_bytes(page_bytes, leased),
            self.on_cpu,
            PageGroups(self.groups.windows, config.block_size, limits.max_num_batched_tokens),
            self.ranks.size * profile.size,
        )
        if budget.max_model_len < max_model_len:
            message = "%d KV pages hold sequences of at most %d tokens, not %d"
            log.warning(message, budget.num_pages, budget.max_model_len, max_model_len)
        return budget

    def _free_bytes(self, page_bytes: PageBytes, leased: Found) -> int:
        """Bytes for pages, those that are leased already included."""
        build, loaded = self.build, self.loaded
        free = free_for_all(build.device, self.ranks, page_bytes.by_rank, self.memory)
        # The KV of encoder states in pages of their own may take as much again.
        has_cross = bytes_per_cross_page(loaded.unstaged, self.config.block_size, build.dtype) > 0
        return free + leased.size - self.encoder_cache_bytes * (1 + has_cross)

    def graphs(self, limits: StepLimits) -> Sizes:
        """The steps that are captured and replayed."""
        config, (_, tokens, longest) = self.config, limits
        if self.build.device.type != "cuda":
            # One size: a tape replays any number of its rows, of any length.
            rows = min(config.max_replay_rows, config.max_num_seqs)
            return Sizes((rows,), longest, min(tokens, _TAPED, rows * longest))
        rows = min(config.max_cudagraph_capture_size, config.max_num_seqs)
        # A backend of attention that plans on the host has plans of decode steps alone.
        model = self.loaded.model
        mixed = isinstance(model, Model) and model.launch_blocker is None
        captured = min(config.max_seq_len_to_capture or longest, longest)
        return Sizes.up_to(rows, captured, tokens if mixed else 0)


def layer_groups(config: Config, build: BuildContext, loaded: LoadedModel) -> LayerGroups:
    """The page groups of the layers that this rank holds."""
    paged, size = _paged(loaded), config.block_size
    if config.hybrid_kv_cache:
        groups = page_groups(paged, size, build.dtype, build.codes)
    else:
        groups = one_group(paged, size)
    return held_groups(groups, loaded.kv_spec)


def _paged(loaded: LoadedModel) -> Decoder:
    """The layers whose KV is in pages, of all stages: these have the same groups."""
    return loaded.kv_spec if loaded.all_stages is None else loaded.all_stages


def _longest(config: Config, loaded: LoadedModel) -> int:
    """Tokens of the longest sequence that the settings request."""
    length = config.max_model_len or loaded.max_length
    if length > loaded.max_length:
        raise SettingsError(
            f"--max-model-len {length}: this model was trained for {loaded.max_length} tokens."
        )
    return length


def _draft_page_bytes(loaded: LoadedModel, ranks: Communicator, device: torch.device) -> int:
    """Bytes for a page of drafts on all ranks together: the first has them, and of GPUs the one
    with least memory counts."""
    local = 0 if loaded.drafter is None else loaded.drafter.page_bytes
    return max(numbers(ranks, local, device)) * (ranks.size if device.type == "cuda" else 1)


def batch_tokens(config: Config, loaded: LoadedModel, longest: int, on_cpu: bool) -> int:
    """Most tokens of a step, by default as many again as rows can decode. A text that is run whole
    is not cut to it, so it must hold the longest of them, or beside running sequences as long ones
    as it can."""
    whole = loaded.recipe is not None and loaded.recipe.whole
    usual = max(_ON_CPU if on_cpu and not whole else _ON_GPU, 2 * config.max_num_seqs)
    only_whole = whole and not loaded.generates
    return max(config.max_num_batched_tokens or usual, longest if only_whole else 0)
