"""Checkpoint tensors that hold several roles or several experts, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fused:
    """One checkpoint tensor that holds the rows of several roles.

    The rows come in `groups` equal groups, each with its share of every part in turn: with one
    group q, k and v lie one after the other; with one group per head they alternate head by head.
    `transposed` is for a weight stored as [in, out].
    """

    source: str
    parts: tuple[str, ...]
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Stacked:
    """One checkpoint tensor that holds a part of every expert of a layer.

    `source` is its whole name, `parts` the roles that it fills, each with `{expert}` in its name.
    The first axis is the expert, or expert times row where `flat`. An expert's share holds the
    rows of each part in turn, or row by row in turn where `interleaved`; it is stored as [in, out]
    where `transposed`. With `scales`, the name of a second tensor, both are MXFP4 (see
    `models.mxfp4`).
    """

    source: str
    parts: tuple[str, ...]
    suffix: str = "weight"
    flat: bool = False
    interleaved: bool = False
    transposed: bool = False
    scales: str | None = None
