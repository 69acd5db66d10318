"""Facts read from small pretend /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.platform import machine


def tree(root: Path, **files: str) -> Path:
    """Write files; "__" in a name stands for "/"."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    8000 kB\n"


def test_memory_of_a_bare_machine(tmp_path: Path) -> None:
    assert machine.available_bytes(tree(tmp_path, proc__meminfo=MEMINFO)) == 8000 * 1024


def test_memory_in_a_container(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memoryDOTmax="1000000\n",
        sys__fs__cgroup__memoryDOTcurrent="400000\n",
    )
    assert machine.available_bytes(root) == 600_000


def test_memory_in_a_nested_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="1:cpu:/old\n0::/a/b\n",
        sys__fs__cgroup__a__b__memoryDOTmax="max\n",
        sys__fs__cgroup__a__memoryDOTmax="500\n",
        sys__fs__cgroup__a__memoryDOTcurrent="900\n",
    )
    assert machine.available_bytes(root) == 0


def test_memory_unknown(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        machine.available_bytes(tree(tmp_path, proc__meminfo="MemTotal: 1 kB\n"))


def test_cores_are_cut_to_the_quota(tmp_path: Path) -> None:
    assert machine.cores(tree(tmp_path, sys__fs__cgroup__cpuDOTmax="50000 100000\n")) == 1
    unlimited = tree(tmp_path / "b", sys__fs__cgroup__cpuDOTmax="max 100000\n")
    assert machine.cores(unlimited) >= 1


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse avx512f avx512_bf16 avx512_vnni\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu sse avx2 avx512f\n", False),
        ("model name: something without flags\n", False),
    ],
)
def test_fast_bfloat16(tmp_path: Path, cpuinfo: str, fast: bool) -> None:
    assert machine.has_fast_bfloat16(tree(tmp_path, proc__cpuinfo=cpuinfo)) is fast


def test_the_real_machine_answers() -> None:
    assert machine.available_bytes() > 2**20
    assert machine.cores() >= 1
