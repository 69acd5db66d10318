"""Half of a residual block: a mixer or an ffn, with its norms and the addition to the stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.layer import Bare
from baton_worker.layers.norm import ConditionedNorm, norm
from baton_worker.layers.residual import Residual, ResidualSum, added, adds, normed

Part: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
"""A mixer or an ffn: [T, hidden] and a residual to add to the result."""


class Half(Bare):
    """One half of a block: a mixer or an ffn with its norms and residual addition."""

    def __init__(self, decoder: spec.Decoder, role: str, context: BuildContext) -> None:
        super().__init__()
        self.scale = decoder.residual_scale
        self.norm = norm(decoder.norm, decoder.hidden, f"{role}_norm", context)

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """The stream [T, hidden] to the stream after this half."""
        raise NotImplementedError

    def extend(self, x: Residual, part: Part) -> Residual:
        """`forward`, with the sum before this half, and the one that ends it, left to the norms
        that follow them, where this device's do that (see `layers.residual`)."""
        return self.forward(added(x), part)


class PreNorm(Half):
    """x + f(norm(x)): the stream itself is never normed."""

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        return added(self.extend(x, part))

    def extend(self, x: Residual, part: Part) -> Residual:
        """See `Half.extend`."""
        inputs, x = normed(x, self.norm)
        if self.scale != 1.0:
            return x + self.scale * part(inputs, None)
        return ResidualSum(x, part(inputs, None)) if adds(self.norm) else part(inputs, x)


class Conditioned(PreNorm):
    """As `PreNorm`; the norm of a feed-forward is conditioned on a time."""

    def __init__(self, decoder: spec.Decoder, role: str, context: BuildContext) -> None:
        super().__init__(decoder, role, context)
        if role == "ffn":
            assert decoder.condition is not None, "the style needs it"
            arguments = (decoder.norm, decoder.hidden, f"{role}_norm", decoder.condition)
            self.norm = ConditionedNorm(*arguments, context)


class NoNorm(Bare):
    """x + f(x): the first layer of EAGLE (arXiv:2401.15077) reads its input as it is."""

    def __init__(self, decoder: spec.Decoder) -> None:
        super().__init__()
        self.scale = decoder.residual_scale

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        return part(x, x) if self.scale == 1.0 else x + self.scale * part(x, None)

    def extend(self, x: Residual, part: Part) -> Residual:
        """See `Half.extend`."""
        return self.forward(added(x), part)


class ScaledNorm(Half):
    """x + s * f(norm(x)) with one learned factor per channel (LayerScale, arXiv:2103.17239)."""

    def __init__(self, decoder: spec.Decoder, role: str, context: BuildContext) -> None:
        super().__init__(decoder, role, context)
        self.factors = Learned((decoder.hidden,), f"{role}_scale", context)

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        out: Tensor = x + self.factors() * part(self.norm(x), None)
        return out


class PostNorm(Half):
    """x + norm(f(x)) (OLMo 2, arXiv:2501.00656)."""

    def __init__(self, decoder: spec.Decoder, role: str, context: BuildContext) -> None:
        super().__init__(decoder, f"{role}_post", context)

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        mixed = part(x, None)
        return self.norm.plus(mixed, x) if self.scale == 1.0 else x + self.scale * self.norm(mixed)


class SandwichNorm(Half):
    """x + post_norm(f(norm(x))) (CogView, arXiv:2105.13290)."""

    def __init__(self, decoder: spec.Decoder, role: str, context: BuildContext) -> None:
        super().__init__(decoder, role, context)
        after = decoder.norm
        if decoder.post_offsets is not None:
            after = replace(after, offset=decoder.post_offsets[role == "ffn"])
        self.post_norm = norm(after, decoder.hidden, f"{role}_post_norm", context)

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        return added(self.extend(x, part))

    def extend(self, x: Residual, part: Part) -> Residual:
        """See `Half.extend`."""
        inputs, x = normed(x, self.norm)
        mixed = part(inputs, None)
        if self.scale == 1.0 and not adds(self.norm):
            return self.post_norm.plus(mixed, x)
        more: Tensor = self.scale * self.post_norm(mixed)
        return ResidualSum(x, more) if adds(self.norm) else x + more


class AfterNorm(Half):
    """norm(x + f(x)): the original Transformer's order (arXiv:1706.03762)."""

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        out: Tensor = self.norm(part(x, x))
        return out


class NormedStream(Half):
    """norm(x) + f(norm(x)): BLOOM's `apply_residual_connection_post_layernorm`."""

    def forward(self, x: Tensor, part: Part) -> Tensor:
        """See `Half.forward`."""
        normed = self.norm(x)
        return part(normed, normed)
