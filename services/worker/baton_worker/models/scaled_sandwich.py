"""The residual block of Gemma 4: sandwich norms, a layer's own embedding, a learned factor."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.layer_embeddings import LayerEmbeddingGate
from baton_worker.layers.moe.parallel import ParallelMoe
from baton_worker.models.residual_half import SandwichNorm


class ScaledSandwich(Bare):
    """Sandwich norms around mixer and ffn; then the layer's own embedding, if the model has some;
    all of it times a learned factor."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self._reads_stream = isinstance(ffn, ParallelMoe)
        self.mixer_half = SandwichNorm(decoder, "mixer", context)
        self.ffn_half = SandwichNorm(decoder, "ffn", context)
        self.own: LayerEmbeddingGate | None = None
        if decoder.layer_embeddings is not None:
            self.own = LayerEmbeddingGate(decoder, context)
        self.factor = Learned((1,), "layer_factor", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        x = self.mixer_half(x, lambda normed, _: self.mixer(normed, step, pages, None))
        stream = x if self._reads_stream else None
        x = self.ffn_half(x, lambda normed, _: self.ffn(normed, stream))
        if self.own is not None:
            x = x + self.own(x, step)
        out: Tensor = x * self.factor()
        return out
