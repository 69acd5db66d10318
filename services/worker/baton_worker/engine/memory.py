"""Sizes the KV cache: number of pages, and the maximum sequence length."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from baton.errors import SettingsError
from baton.kv.page_groups import PageGroups
from baton.process import standby
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.platform import machine
from baton_worker.platform.device_memory import DeviceMemory, device_memory


@dataclass(frozen=True, slots=True)
class PageBudget:
    """Pages of the cache, and the longest sequence that fits into them."""

    num_pages: int
    max_model_len: int


def free_bytes(device: torch.device, memory: DeviceMemory | None = None) -> int:
    """Free memory of a device for pages, after loading the weights; `memory` are its counters, if
    not those of `device_memory`."""
    if (memory := memory or device_memory(device)) is not None:
        return memory.free()
    # A standby will get the memory of the worker that it replaces.
    return machine.available_bytes() + standby.inherited_bytes()


def has_room(checkpoint: Path, shared: int = 0) -> bool:
    """Whether the weights of a checkpoint may be in memory once more, but for the bytes that
    workers share: as floats they may take twice the bytes of its files, and half of what is free is
    left to others."""
    files = checkpoint.rglob("*") if checkpoint.is_dir() else (checkpoint,)
    size = sum(file.stat().st_size for file in files if file.is_file())
    return 2 * max(size - shared, 0) <= machine.available_bytes() / 2


def free_for_all(
    device: torch.device,
    ranks: Communicator,
    page_bytes: Sequence[int],
    memory: DeviceMemory | None = None,
) -> int:
    """Memory that is free for the pages of all ranks together, each of which gets as many: of a
    host they share one, of GPUs the one counts that holds fewest. `page_bytes` are those of a page
    on each rank."""
    free = numbers(ranks, free_bytes(device, memory), device)
    if device.type == "cpu":
        return min(free)
    if not any(page_bytes):
        return min(free) * ranks.size
    each, total = zip(free, page_bytes, strict=True), sum(page_bytes)
    return min(share * total // size for share, size in each if size)


def choose_pages(
    config: Config,
    page_bytes: int,
    max_model_len: int,
    free: int,
    on_cpu: bool,
    groups: PageGroups,
    reserved: int = 0,
) -> PageBudget:
    """Choose the page count: that of the settings, or a share of the memory, never more than
    usable.

    Args:
        page_bytes: bytes of one page over all layers of a group and all ranks.
        max_model_len: longest sequence that the model or the operator allows, in tokens.
        free: bytes that are free on the device.
        on_cpu: whether `max_kv_bytes` bounds the pages too.
        groups: what a sequence takes of them. Pages are alike, so the groups share them as their
            sequences need them.
        reserved: bytes of `free` that steps and graphs take.

    Raises:
        SettingsError: not even one page fits.
    """
    pages = config.num_gpu_blocks_override or _affordable(
        config, page_bytes, free, on_cpu, reserved
    )
    longest = groups.num_pages(-(-max_model_len // config.block_size))
    pages = min(pages, config.max_num_seqs * longest)
    room = free - reserved
    if pages * page_bytes > room or pages < 1:
        num_pages = max(pages, 1)
        steps = f" beside {reserved / 2**20:.1f} MiB for steps" if reserved else ""
        raise SettingsError(
            f"{num_pages} KV pages take {num_pages * page_bytes / 2**20:.1f} MiB, of "
            f"{room / 2**20:.1f} MiB that are free{steps}. Set --num-gpu-blocks-override, "
            "--block-size, --gpu-memory-utilization or --max-kv-bytes so that they fit, or choose "
            "a smaller model."
        )
    return PageBudget(pages, groups.longest(pages, max_model_len))


def default_share(on_cpu: bool) -> float:
    """Share of free memory for pages: a host has other work, a GPU fragments of memory."""
    return 0.5 if on_cpu else 0.9


def _affordable(config: Config, page_bytes: int, free: int, on_cpu: bool, reserved: int) -> int:
    if not page_bytes:  # Pages that hold nothing: as many as all rows could name.
        return sys.maxsize
    room = int((config.gpu_memory_utilization or default_share(on_cpu)) * free) - reserved
    if on_cpu and config.max_kv_bytes:
        room = min(room, config.max_kv_bytes)
    return max(room, 0) // page_bytes
