"""Describes the machine that a measurement ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from baton import __version__
from baton.settings import environment


def cpu_model(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo; empty when it is missing."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()
    return ""


def facts() -> dict[str, Any]:
    """Return processor, available cores, memory in bytes, and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return {
        "cpu": cpu_model(text) or platform.processor() or platform.machine(),
        "cpu_features": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags],
        "cores": _cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "omp_num_threads": environment().get("OMP_NUM_THREADS"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "baton": __version__,
    }


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
