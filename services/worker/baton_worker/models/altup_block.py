"""The residual block of Gemma 3n over several streams: see `spec.AltUp`."""

from __future__ import annotations

import math

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.altup import StreamUpdate
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.layer_embeddings import LayerEmbeddingGate
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm


class AltUpBlock(Bare):
    """Sandwich norms around attention and ffn of the active stream."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        settings, hidden = decoder.altup, decoder.hidden
        assert settings is not None
        self._settings, self.mixer, self.ffn = settings, mixer, ffn
        self.update = StreamUpdate(settings, decoder, context)
        self.mixer_norm, self.mixer_post_norm, self.ffn_norm, self.ffn_post_norm = (
            norm(decoder.norm, hidden, f"{role}_norm", context)
            for role in ("mixer", "mixer_post", "ffn", "ffn_post")
        )
        self.left = Linear(hidden, {"laurel_left": settings.rank}, context)
        self.right = Linear(settings.rank, {"laurel_right": hidden}, context)
        self.laurel_norm = norm(decoder.norm, hidden, "laurel_norm", context)
        self.factors = Learned((hidden,), "altup_scale", context)
        self.own = LayerEmbeddingGate(decoder, context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """Streams side by side, [T, streams * hidden], to the same."""
        streams = x.view(len(x), self._settings.num_streams, -1)
        predicted = self.update.predict(streams)
        activated = self._layer(predicted[:, self._settings.active], step, pages)
        corrected = self.update.correct(predicted, activated)
        more = self._own_embedding(corrected[:, self._settings.active], step)
        return self.update.extend(corrected, more).flatten(1)

    def _layer(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        normed = self.mixer_norm(x)
        low_rank = normed + self.laurel_norm(self.right(self.left(normed)))
        mixed = self.mixer_post_norm.plus(self.mixer(normed, step, pages, None), x)
        x = (mixed + low_rank) / math.sqrt(2)
        return self.ffn_post_norm.plus(self.ffn(self.ffn_norm(x), None), x)

    def _own_embedding(self, x: Tensor, step: ForwardContext) -> Tensor:
        out: Tensor = self.own(x * self.factors() if self._settings.scaled else x, step)
        return out
