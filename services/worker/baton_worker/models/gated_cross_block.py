"""The residual block of Flamingo: gated attention to the states of an encoder, and a gated ffn."""

from __future__ import annotations

from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.norm import norm


class GatedCross(Bare):
    """x + tanh(gate) * f(norm(x)) for each half (Flamingo, arXiv:2204.14198); a token that sees no
    states goes past the block."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.ffn_norm = norm(decoder.norm, decoder.hidden, "ffn_norm", context)
        self.gate = Learned((1,), "cross_gate", context)
        self.ffn_gate = Learned((1,), "cross_ffn_gate", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        if step.cross is None:
            return x
        places = step.cross.places
        attending = x.index_select(0, places)
        mixed = self.mixer(self.mixer_norm(attending), step, pages, None)
        attending = attending + self.gate().tanh() * mixed
        attending = attending + self.ffn_gate().tanh() * self.ffn(self.ffn_norm(attending), None)
        return x.index_copy(0, places, attending)
