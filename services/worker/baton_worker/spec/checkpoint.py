"""Checkpoint tensors that hold several roles or several experts, as data."""

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
    `transposed`. With `scales`, the name of a second tensor, both are MXFP4 (see
    `quantization.mxfp4`).
    """

    source: str
    parts: tuple[str, ...]
    suffix: str = "weight"
    flat: bool = False
    interleaved: bool = False
    transposed: bool = False
    scales: str | None = None
