"""Embeddings that a layer has of its own: see `spec.LayerEmbeddings`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.kernels.cpu.embedding import listed
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation
from baton_worker.layers.norm import norm


class LayerEmbeddings(nn.Module):
    """The embeddings of all layers, from a table and from the token's first hidden state."""

    def __init__(self, decoder: spec.Decoder, context: BuildContext) -> None:
        super().__init__()
        assert decoder.layer_embeddings is not None
        width, self._layers = decoder.layer_embeddings.width, len(decoder.layers)
        total, self._vocab = self._layers * width, decoder.layer_embeddings.vocab
        self._factors = tuple(
            torch.tensor(factor, dtype=context.dtype).item()
            for factor in (math.sqrt(width), decoder.hidden**-0.5, math.sqrt(0.5))
        )
        self.table = _LayerTable(decoder.layer_embeddings, total, context)
        self.project = Linear(decoder.hidden, {"layer_projection": total}, context)
        self.norm = norm(decoder.norm, width, "layer_projection_norm", context)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """First hidden states [T, hidden] of tokens int64 [T] to [T, layers, width]."""
        table, projected, both = self._factors
        embedding = self.table(listed(tokens, self._vocab)) * table
        shape = (len(tokens), self._layers, -1)
        mixed = self.norm((self.project(x) * projected).view(shape))
        out: Tensor = (mixed + embedding.view(shape)) * both
        return out


class _LayerTable(Table):
    """The rows of all layers side by side, [vocab, layers * width]."""

    def __init__(self, settings: spec.LayerEmbeddings, width: int, context: BuildContext) -> None:
        super().__init__(settings.vocab, width, "layer_embedding", context)
        self._settings = settings

    def process_weights_after_loading(self) -> None:
        """Give placeholders of media the row that they have: no step looks them up."""
        super().process_weights_after_loading()
        assert self.weight is not None
        for token in self._settings.media_tokens:
            if token < self._settings.vocab:
                self.weight[token] = self.weight[self._settings.media_row]


class LayerEmbeddingGate(Bare):
    """What one layer adds of its own embedding; `number` is set by the model: which it is."""

    number = 0

    def __init__(self, decoder: spec.Decoder, context: BuildContext) -> None:
        super().__init__()
        assert decoder.layer_embeddings is not None
        hidden, width = decoder.hidden, decoder.layer_embeddings.width
        self._activation = activation(decoder.layer_embeddings.activation)
        self.gate = Linear(hidden, {"layer_gate": width}, context)
        self.output = Linear(width, {"layer_output": hidden}, context)
        self.norm = norm(decoder.norm, hidden, "layer_output_norm", context)

    def forward(self, x: Tensor, step: ForwardContext) -> Tensor:
        """What opens the gate, [T, hidden], to what is added, [T, hidden]."""
        assert step.layer_embeddings is not None
        gated = self._activation(self.gate(x)) * step.layer_embeddings[:, self.number]
        out: Tensor = self.norm(self.output(gated))
        return out
