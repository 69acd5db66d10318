"""How many KV pages the memory holds, and how long a sequence can be with them."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from baton.errors import SettingsError
from baton.kv.page_groups import PageGroups
from baton_worker.config import Config
from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.platform import machine


@dataclass(frozen=True, slots=True)
class Budget:
    """Pages of the cache, and the longest sequence that fits into them."""

    num_pages: int
    max_length: int


def free_bytes(device: torch.device) -> int:
    """Memory that is free for pages on a device, now that the weights are on it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine.available_bytes()


def free_for_all(device: torch.device, ranks: Communicator) -> int:
    """Memory that is free for the pages of all ranks together, each of which gets as many: of a
    host they share one, of GPUs the one with least counts."""
    least = min(numbers(ranks, free_bytes(device), device))
    return least * ranks.size if device.type == "cuda" else least


def choose_pages(
    config: Config,
    page_bytes: int,
    max_length: int,
    free: int,
    on_cpu: bool,
    groups: PageGroups,
) -> Budget:
    """Choose the page count: what was asked for, or a share of the memory, never more than usable.

    Args:
        page_bytes: bytes of one page over all layers of a group and all ranks.
        max_length: longest sequence that the model or the operator allows, in tokens.
        free: bytes that are free on the device.
        on_cpu: whether `max_kv_bytes` bounds the pages too.
        groups: what a sequence takes of them. Pages are alike, so the groups share them as their
            sequences need them.

    Raises:
        SettingsError: not even one page fits.
    """
    pages = config.num_pages or _affordable(config, page_bytes, free, on_cpu)
    pages = min(pages, config.max_rows * groups.num_pages(-(-max_length // config.page_size)))
    if pages * page_bytes > free or pages < 1:
        wanted = max(pages, 1)
        raise SettingsError(
            f"{wanted} KV pages take {wanted * page_bytes / 2**20:.1f} MiB, of {free / 2**20:.1f} "
            "MiB that are free. Set --num-pages, --page-size, --memory-share or --max-kv-bytes so "
            "that they fit, or choose a smaller model."
        )
    return Budget(pages, groups.longest(pages, max_length))


def _affordable(config: Config, page_bytes: int, free: int, on_cpu: bool) -> int:
    if not page_bytes:  # Pages that hold nothing: as many as all rows could name.
        return sys.maxsize
    room = int(config.memory_share * free)
    if on_cpu and config.max_kv_bytes:
        room = min(room, config.max_kv_bytes)
    return room // page_bytes
