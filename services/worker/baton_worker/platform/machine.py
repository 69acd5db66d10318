"""Resources of this machine, or of the container around the process: memory, cores,
instructions."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_FAST_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of x86 (both generations) and of Arm for bfloat16 products."""


def available_bytes(root: Path = ROOT) -> int:
    """Memory that can be taken without swapping or hitting the limit of a control group.

    Raises:
        OSError: the system has no /proc/meminfo.
    """
    text = (root / "proc/meminfo").read_text()
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    if match is None:
        raise OSError("/proc/meminfo does not say how much memory is available.")
    return min(int(match[1]) * 1024, *_group_rooms(root), 2**63)


def cores(root: Path = ROOT) -> int:
    """Cores that this process may keep busy: its affinity, cut to the quota of a control group."""
    quotas = [math.ceil(int(quota) / int(period)) for quota, period in _cpu_quotas(root)]
    return max(1, min(len(os.sched_getaffinity(0)), *quotas, 2**16))


def has_fast_bfloat16(root: Path = ROOT) -> bool:
    """Whether the CPU multiplies bfloat16. Without that, torch is slower at it than at float32."""
    return not _FAST_BFLOAT16.isdisjoint(instructions(root))


def instructions(root: Path = ROOT) -> frozenset[str]:
    """The flags of /proc/cpuinfo; empty where there is no such file."""
    path = root / "proc/cpuinfo"
    text = path.read_text() if path.is_file() else ""
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def _group_folders(root: Path) -> Iterator[Path]:
    """The control group (v2) of this process and those above it."""
    base = root / "sys/fs/cgroup"
    membership = root / "proc/self/cgroup"
    lines = membership.read_text().splitlines() if membership.is_file() else []
    names = [line.removeprefix("0::/") for line in lines if line.startswith("0::")]
    for name in names or [""]:
        folder = base / name
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(base))


def _group_rooms(root: Path) -> Iterator[int]:
    for folder in _group_folders(root):
        limit, used = folder / "memory.max", folder / "memory.current"
        if limit.is_file() and (text := limit.read_text().strip()) != "max":
            yield max(0, int(text) - int(used.read_text()))


def _cpu_quotas(root: Path) -> Iterator[list[str]]:
    for folder in _group_folders(root):
        quota = folder / "cpu.max"
        if quota.is_file() and (words := quota.read_text().split())[0] != "max":
            yield words
