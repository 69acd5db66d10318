"""Streams of Gemma 3n: prediction and correction by layer, and what begins and ends them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.altup.streams import CpuStreams
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import tanh
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm

_LEAST_SQUARE = 1e-5
"""Of the mean square of a stream, in the precision of the model."""


class StreamUpdate(nn.Module):
    """One layer's prediction and correction of [T, streams, hidden]; see `spec.AltUp`."""

    def __init__(self, settings: spec.AltUp, decoder: spec.Decoder, context: BuildContext) -> None:
        super().__init__()
        count, hidden = settings.num_streams, decoder.hidden
        self._active, self._count, self._scale = settings.active, count, 1.0 / hidden
        self._kernels = kernels(decoder, context)
        self.router_norm = norm(decoder.norm, hidden, "altup_router_norm", context)
        self.router = Linear(hidden, {"altup_router": count}, context)
        self.weigh_prediction = Linear(count, {"altup_prediction": count**2}, context)
        self.weigh_correction = Linear(count, {"altup_correction": count}, context)

    def predict(self, streams: Tensor) -> Tensor:
        """Each stream plus a sum of all of them."""
        weights = self.weigh_prediction(self._route(streams[:, self._active]))
        if self._kernels is not None:
            return self._kernels.predict(streams, weights)
        weights = weights.view(-1, self._count, self._count, 1)
        sums = [(weights[:, to] * streams).sum(1) for to in range(self._count)]
        return torch.stack(sums, dim=1) + streams

    def correct(self, predicted: Tensor, activated: Tensor) -> Tensor:
        """Each predicted stream plus a share of what the layer has changed; `activated` is the
        layer's output, [T, hidden]."""
        shares: Tensor = self.weigh_correction(self._route(activated))
        if self._kernels is not None:
            return self._kernels.correct(predicted, activated, shares)
        changed = activated - predicted[:, self._active]
        return changed[:, None] * (shares + 1.0)[..., None] + predicted

    def extend(self, corrected: Tensor, more: Tensor) -> Tensor:
        """Add [T, hidden] to all streams but the first; this may be in place."""
        if self._kernels is None:
            return torch.cat((corrected[:, :1], corrected[:, 1:] + more[:, None]), dim=1)
        self._kernels.extend_(corrected, more)
        return corrected

    def _route(self, x: Tensor) -> Tensor:
        routed: Tensor = self.router(self.router_norm(x) * self._scale)
        return tanh(routed.float()).to(x.dtype)


class Streams(nn.Module):
    """From the embeddings of tokens to their streams, and from these to hidden states."""

    def __init__(self, decoder: spec.Decoder, context: BuildContext) -> None:
        super().__init__()
        settings = decoder.altup
        assert settings is not None
        self._hidden, here = decoder.hidden, replace(context, name=str)
        self._kernels = kernels(decoder, context)
        self.begin, self.end = (
            nn.ModuleList(
                Linear(decoder.hidden, {f"model.{name}.{stream}": decoder.hidden}, here)
                for stream in range(settings.num_streams - 1)
            )
            for name in ("altup_projections", "altup_unembed_projections")
        )

    def enter(self, x: Tensor) -> Tensor:
        """Embeddings [T, hidden] to streams side by side, [T, streams * hidden]."""
        return self._alike(x, [project(x) for project in self.begin]).flatten(1)

    def leave(self, x: Tensor) -> Tensor:
        """[R, streams * hidden] to [R, hidden]: the mean of all."""
        first, *others = torch.split(x, self._hidden, dim=1)
        pairs = zip(self.end, others, strict=True)
        streams = self._alike(first, [project(other) for project, other in pairs])
        return streams.mean(1) if self._kernels is None else self._kernels.average(streams)

    def _alike(self, first: Tensor, others: list[Tensor]) -> Tensor:
        """Rows [T, hidden] each, with the root mean square of the first ones: [T, streams,
        hidden]."""
        if self._kernels is None:
            return torch.stack([first, *(_like(other, first) for other in others)], dim=1)
        streams = first.new_empty((len(first), 1 + len(others), self._hidden))
        streams[:, 0].copy_(first)
        for number, other in enumerate(others, start=1):
            self._kernels.liken(other, first, _LEAST_SQUARE, streams[:, number])
        return streams


def kernels(decoder: spec.Decoder, context: BuildContext) -> CpuStreams | None:
    """Those of the streams of such a decoder; None if there are none."""
    if decoder.altup is None or CpuStreams.refuses(context.dtype, context.device) is not None:
        return None
    settings = decoder.altup
    return CpuStreams(settings.num_streams, settings.active, decoder.hidden, context.dtype)


def _like(x: Tensor, other: Tensor) -> Tensor:
    """With the root mean square of the rows of another tensor."""
    target = other.square().mean(-1, keepdim=True).sqrt()
    current = x.square().mean(-1, keepdim=True).clamp(min=_LEAST_SQUARE).sqrt()
    return x * target / current
