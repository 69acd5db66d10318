"""MobileNetV5 as timm builds it by the name of a variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from baton_worker.spec import EdgeBlock, InvertedBlock, MobileBlock, MobileTower, QueryBlock

_STEM, _LAST = 64, 2048
_MULTIPLE = 8
"""Numbers of channels are multiples of this; rounding removes at most a tenth of them."""


def mobilenet_v5(
    model_args: Mapping[str, Any], side: int, *, width: int, **fields: Any
) -> MobileTower:
    """The variant `mobilenetv5_300m_enc`; `model_args` are arguments of timm, `fields` those of
    `spec.MobileTower`.

    Raises:
        AttributeError: it has another size, or another argument.
    """
    known = {"channel_multiplier", "msfa_output_resolution"}
    if others := sorted(model_args.keys() - known):
        raise AttributeError(f"vision_config.model_args has {', '.join(others)}")
    if width != _LAST:
        raise AttributeError(f"vision_config.hidden_size {width} is not {_LAST}")
    if model_args.get("msfa_output_resolution", side) != side:
        raise AttributeError("vision_config.model_args.msfa_output_resolution has other tokens")
    factor = model_args.get("channel_multiplier", 1.0)
    stages = tuple(
        tuple(_thinned(stage, factor)) for stage in (_edge(), _early(), _middle(), _late())
    )
    inputs = stages[-2][-1].width + stages[-1][-1].width
    return MobileTower(
        prefix="vision_tower.timm_model",
        stem=_STEM if factor < 1 else _rounded(_STEM * factor),
        stages=stages,
        taps=(len(stages) - 2, len(stages) - 1),
        fused=_rounded(2 * inputs),
        side=side,
        width=width,
        **fields,
    )


def _edge() -> Iterator[MobileBlock]:
    yield from (EdgeBlock(3, stride, 4, 128) for stride in (2, 1, 1))


def _early() -> Iterator[MobileBlock]:
    yield InvertedBlock(3, 5, 2, 6, 256)
    yield from (InvertedBlock(size, 0, 1, 4, 256) for size in (5, 3, 5, 3))


def _middle() -> Iterator[MobileBlock]:
    yield InvertedBlock(5, 5, 2, 6, 640)
    yield from [InvertedBlock(5, 0, 1, 4, 640)] * 7
    yield InvertedBlock(0, 0, 1, 1, 640)
    yield from _pairs(QueryBlock(3, 12, 64, 2, 640), 14)


def _late() -> Iterator[MobileBlock]:
    yield InvertedBlock(5, 5, 2, 6, 1280)
    yield from _pairs(QueryBlock(3, 16, 96, 1, 1280), 19)


def _pairs(attention: QueryBlock, count: int) -> Iterator[MobileBlock]:
    for _ in range(count):
        yield attention
        yield InvertedBlock(0, 0, 1, 2, attention.width)


def _thinned(stage: Iterator[MobileBlock], factor: float) -> Iterator[MobileBlock]:
    return (replace(block, width=_rounded(block.width * factor)) for block in stage)


def _rounded(channels: float) -> int:
    rounded = max(_MULTIPLE, int(channels + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return rounded if rounded >= 0.9 * channels else rounded + _MULTIPLE
