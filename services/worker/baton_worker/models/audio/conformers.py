"""Conformer encoders: spectrograms to states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.biased_conformer import BiasedStem, DistanceBias, biased_block
from baton_worker.layers.audio.block_conformer import block_block
from baton_worker.layers.audio.conformer import ConformerBlock
from baton_worker.layers.audio.local_conformer import LocalStem, local_block
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear


class ConformerEncoder(nn.Module):
    """A stem and blocks; clips run one by one, so that the states of one do not depend on
    others."""

    stem: nn.Module

    def __init__(self, settings: spec.Conformer, blocks: list[ConformerBlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.hidden, self.progress = settings.hidden, 0
        """Channels of a state, and the number of blocks run since construction."""

    def num_states(self, frames: int) -> int:
        """Number of states of a clip."""
        raise NotImplementedError

    def forward(self, frames: Tensor) -> Tensor:
        """[frames, bins] to [states, hidden]."""
        raise NotImplementedError

    def _through(self, x: Tensor, *context: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, *context)
            self.progress += 1
        return x


class LocalConformer(ConformerEncoder):
    """See `spec.LocalConformer`."""

    def __init__(self, settings: spec.LocalConformer, context: BuildContext) -> None:
        here = context.under(settings.prefix)
        super().__init__(settings, _blocks(settings, here, "conformer", local_block))
        self.stem = LocalStem(settings, here.under("subsample_conv_projection"))
        self._settings = settings

    def num_states(self, frames: int) -> int:
        """One of `reduction` states of the blocks."""
        for (_, _), (stride, _) in zip(self._settings.sizes, self._settings.strides, strict=True):
            frames = (frames - 1) // stride + 1
        return -(-frames // self._settings.reduction)

    def forward(self, frames: Tensor) -> Tensor:
        """See `ConformerEncoder`."""
        return self._through(self.stem(frames))[:: self._settings.reduction]


class BiasedConformer(ConformerEncoder):
    """See `spec.BiasedConformer`."""

    def __init__(self, settings: spec.BiasedConformer, context: BuildContext) -> None:
        here = context.under(settings.prefix)
        super().__init__(settings, _blocks(settings, here, "encoders", biased_block))
        self.stem, self.bias = BiasedStem(settings, here), DistanceBias(settings, here)
        self._longest, self._reduction = settings.longest, settings.reduction

    def num_states(self, frames: int) -> int:
        """One of `reduction` frames."""
        return -(-frames // self._reduction)

    def forward(self, frames: Tensor) -> Tensor:
        """See `ConformerEncoder`. Zeros fill up the last part of a long clip, as in training."""
        x = self.stem(frames)
        count, size = len(x), min(len(x), self._longest)
        padded = torch.nn.functional.pad(x, (0, 0, 0, -count % size))
        bias = self.bias(size, x.device)
        parts = [self._through(part, bias) for part in torch.split(padded, size)]
        return torch.cat(parts)[:count]


class BlockConformer(ConformerEncoder):
    """See `spec.BlockConformer`."""

    def __init__(self, settings: spec.BlockConformer, context: BuildContext) -> None:
        here = context.under(settings.prefix)
        super().__init__(settings, _blocks(settings, here, "layers", block_block))
        self.stem = Linear(settings.bins, {"input_linear": settings.hidden}, here, bias=True)
        self.head = Linear(settings.hidden, {"out": settings.labels}, here, bias=True)
        self.back = Linear(settings.labels, {"out_mid": settings.hidden}, here, bias=True)

    def num_states(self, frames: int) -> int:
        """One of each frame."""
        return frames

    def forward(self, frames: Tensor) -> Tensor:
        """See `ConformerEncoder`."""
        x = self.stem(frames)
        for number, block in enumerate(self.blocks, start=1):
            x = block(x)
            if number == len(self.blocks) // 2:
                x = x + self.back(self.head(x).softmax(-1))
            self.progress += 1
        out: Tensor = x
        return out


CONFORMERS: dict[type[spec.Conformer], Callable[..., ConformerEncoder]] = {
    spec.LocalConformer: LocalConformer,
    spec.BiasedConformer: BiasedConformer,
    spec.BlockConformer: BlockConformer,
}
"""The encoder of a spec."""


def _blocks(
    settings: spec.Conformer,
    context: BuildContext,
    name: str,
    block: Callable[..., ConformerBlock],
) -> list[ConformerBlock]:
    return [block(settings, context.under(f"{name}.{n}")) for n in range(settings.num_layers)]
