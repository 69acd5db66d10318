"""Embedding layers: token ids to the first hidden state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.cpu.embedding import look_up
from baton_worker.kernels.lora.embedding import LoraEmbedding
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.layers.norm import norm


class Table(Layer):
    """An embedding table: rows by index."""

    weight: nn.Parameter | None

    def __init__(
        self, rows: int, width: int, role: str, context: BuildContext, extra: int = 0
    ) -> None:
        super().__init__()
        self._name, self._extra = context.name(role), extra
        self._shape = (rows, width)
        self.weight = context.empty(rows, width)
        self._rows: Callable[[Tensor], Tensor] | None = None
        self.lora: LoraEmbedding | None = None
        """Changes of adapters, where adapters are served."""
        if context.adapters is not None and role == "embedding" and not extra:
            self.lora = LoraEmbedding(context.adapters)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._shape

    @property
    def name(self) -> str:
        """The module's name in a checkpoint."""
        return self._name

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The table, or its first rows and the `extra` ones."""
        assert self.weight is not None
        first = len(self.weight) - self._extra
        yield f"{self._name}.weight", self.weight[:first]
        if self._extra:
            yield f"{self._name}.extra.weight", self.weight[first:]

    def share_rows(self, rows: Callable[[Tensor], Tensor]) -> None:
        """Look rows up through `rows`, the packed table of a tied head, and drop this copy."""
        self._rows, self.weight = rows, None

    def forward(self, numbers: Tensor) -> Tensor:
        """int64 [T] to [T, width]."""
        rows = self._base(numbers)
        return rows if self.lora is None else self.lora.apply(numbers, rows)

    def _base(self, numbers: Tensor) -> Tensor:
        if self._rows is not None:
            return self._rows(numbers)
        assert self.weight is not None
        return look_up(self.weight, numbers)


class Waves(nn.Module):
    """A table of sines and cosines, see `spec.Positions`: rows by position."""

    def __init__(self, rows: int, width: int, context: BuildContext) -> None:
        super().__init__()
        half = width // 2
        rates = (torch.arange(half).float() * (-math.log(10_000.0) / (half - 1))).exp()
        angles = torch.arange(rows).float()[:, None] * rates
        table = torch.cat((angles.sin(), angles.cos()), 1)
        self.table = table.to(context.device, context.dtype)

    def forward(self, numbers: Tensor) -> Tensor:
        """int64 [T] to [T, width]."""
        return look_up(self.table, numbers)


class Embedding(nn.Module):
    """Token embedding plus position embedding, if any: see `spec.Embedding`."""

    def __init__(
        self, settings: spec.Embedding, vocab: int, hidden: int, context: BuildContext
    ) -> None:
        super().__init__()
        width = settings.width or hidden
        # Checkpoints were trained with the scale in the precision of the model.
        self._scale = torch.tensor(settings.scale, dtype=context.dtype).item()
        self.tokens = Table(vocab, width, "embedding", context, settings.extra)
        self.project = self.norm = None
        self.positions: Table | Waves | None = None
        if width != hidden:
            self.project = Linear(width, {"project_in": hidden}, context)
        if settings.positions is not None:
            size, self._offset = settings.positions.size, settings.positions.offset
            computed = settings.positions.waves
            self.positions = (
                Waves(size, hidden, context)
                if computed
                else Table(size, hidden, "positions", context)
            )
        if settings.norm is not None:
            self.norm = norm(settings.norm, hidden, "embedding_norm", context)

    def forward(
        self, tokens: Tensor, positions: Tensor, media: MediaEmbeddings | None = None
    ) -> Tensor:
        """int64 [T] tokens and [T] positions ([axes, T] if positions are not learned) to [T,
        hidden]; those of `media` take the place of tokens and get positions as these do."""
        x: Tensor = self.tokens(tokens)
        if self._scale != 1.0:
            x = x * self._scale
        if self.project is not None:
            x = self.project(x)
        if media is not None:
            x = media.into(x)
        if self.positions is not None:
            assert positions.ndim == 1
            x = x + self.positions(positions + self._offset)
        return x if self.norm is None else self.norm(x)


class Learned(Layer):
    """One parameter of any shape, named after its role without a ".weight" suffix."""

    def __init__(self, shape: tuple[int, ...], role: str, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name(role)
        self.value = context.empty(*shape)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The parameter."""
        yield self._name, self.value

    def forward(self) -> Tensor:
        """The parameter."""
        return self.value
