"""Tensor names and packing of a checkpoint, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fused:
    """One checkpoint tensor that holds the rows of several roles.

    The rows form `groups` equal groups, each with its share of every part in turn: with one group
    q, k and v are concatenated; with one group per head they alternate by head. `transposed` means
    the weight is stored as [in, out].
    """

    source: str
    parts: tuple[str, ...]
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Stacked:
    """One checkpoint tensor that holds a part of every expert of a layer.

    `source` is its full name, `parts` the roles that it fills, each with `{expert}` in its name.
    The first axis is the expert, or expert times row if `flat`. An expert's share holds the parts
    one after the other, or alternating by row if `interleaved`; it is stored as [in, out] if
    `transposed`, or if its columns are not as many as the `inputs` that are given. With `scales`,
    the name of a second tensor, both are MXFP4 (see `quantization.mxfp4`).
    """

    source: str
    parts: tuple[str, ...]
    suffix: str = "weight"
    flat: bool = False
    interleaved: bool = False
    transposed: bool = False
    inputs: int | None = None
    scales: str | None = None


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Differences of a checkpoint from one tensor per role under its default name."""

    names: tuple[tuple[str, str], ...] = ()
    """Roles and their names, unlike those of `spec.names.DEFAULT`."""
    fused: tuple[Fused, ...] = ()
    """Tensors that hold several roles."""
    stacked: tuple[Stacked, ...] = ()
    """Tensors that hold a part of every expert."""
    renames: tuple[tuple[str, str], ...] = ()
    """Other spellings of tensor names: regular expression and replacement, applied in turn."""
    unused: tuple[str, ...] = ()
    """Prefixes of tensors that may stay unread."""
    longer: tuple[str, ...] = ()
    """Modules whose tensors have rows behind those that are read."""
