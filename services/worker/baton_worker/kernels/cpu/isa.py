"""Instruction-set levels: compiler options, and the CPU flags that they require."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IsaLevel:
    """One set of compiler options for all kernels."""

    name: str
    needs: frozenset[str]
    """Flags that /proc/cpuinfo must list."""
    options: tuple[str, ...]
    """Options of the compiler."""

    @property
    def has_tiles(self) -> bool:
        """True if AMX tiles must also be tried out."""
        return "amx_tile" in self.needs


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_AVX2_OPTIONS = ("-mavx2", "-mfma", "-mf16c")
_AVX512_OPTIONS = (
    *_AVX2_OPTIONS,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mprefer-vector-width=512",
)

_BF16 = _AVX512 | {"avx512_bf16", "avx512_vnni"}
_BF16_OPTIONS = (*_AVX512_OPTIONS, "-mavx512bf16", "-mavx512vnni")
_TILES = frozenset({"amx_tile", "amx_bf16"})

LEVELS = (
    IsaLevel("amx", _BF16 | _TILES, (*_BF16_OPTIONS, "-mamx-tile", "-mamx-bf16")),
    IsaLevel("avx512_bf16", _BF16, _BF16_OPTIONS),
    IsaLevel("avx512", _AVX512, _AVX512_OPTIONS),
    IsaLevel("avx2", _AVX2, _AVX2_OPTIONS),
)
"""Best first."""


def best(flags: Set[str]) -> IsaLevel | None:
    """The best level for a CPU with these flags; None if there is none."""
    return next((level for level in LEVELS if level.needs <= flags), None)


def without_tiles(flags: Set[str]) -> Set[str]:
    """The flags of this CPU without those of AMX."""
    return flags - _TILES
