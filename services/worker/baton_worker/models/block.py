"""The residual block: placement of norms around mixer, ffn and residual stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention.cross_attention import CrossAttention
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Bare
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.moe.modality import ModalityMoe
from baton_worker.layers.moe.shortcut import ShortcutMoe
from baton_worker.layers.norm import norm
from baton_worker.layers.residual import Residual, added
from baton_worker.layers.shared_block import SharedAttention, SharedGlu, beside_embeddings
from baton_worker.layers.ssm.lightning_attention import LinearAttention
from baton_worker.models.altup_block import AltUpBlock
from baton_worker.models.gated_cross_block import GatedCross
from baton_worker.models.residual_half import (
    AfterNorm,
    Conditioned,
    Half,
    NoNorm,
    NormedStream,
    PostNorm,
    PreNorm,
    SandwichNorm,
    ScaledNorm,
)
from baton_worker.models.scaled_sandwich import ScaledSandwich


class Sequential(Bare):
    """The mixer half, then the ffn half; a missing half is skipped."""

    def __init__(
        self,
        decoder: spec.Decoder,
        mixer: nn.Module | None,
        ffn: nn.Module | None,
        context: BuildContext,
        *,
        half: type[Half],
        mixer_norm: bool = True,
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self.mixer_half: Half | NoNorm | None = None
        if mixer is not None:
            self.mixer_half = half(decoder, "mixer", context) if mixer_norm else NoNorm(decoder)
        self.ffn_half = None if ffn is None else half(decoder, "ffn", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        return added(self.extend(x, step, pages))

    def extend(self, x: Residual, step: ForwardContext, pages: Tensor) -> Residual:
        """`forward`, which may leave its last sum to the block that follows."""
        return self.feed(self._mixed(x, step, pages))

    def mix(self, x: Residual, step: ForwardContext, pages: Tensor) -> Tensor:
        """The mixer half, which mixes tokens of a sequence."""
        return added(self._mixed(x, step, pages))

    def _mixed(self, x: Residual, step: ForwardContext, pages: Tensor) -> Residual:
        mixer = self.mixer
        if mixer is None or self.mixer_half is None:
            return x
        return self.mixer_half.extend(x, lambda n, residual: mixer(n, step, pages, residual))

    def feed(self, x: Residual) -> Residual:
        """The ffn half, on any rows of the result of `mix`, independently per row; its last sum may
        be left to the norm that follows."""
        if self.ffn is None or self.ffn_half is None:
            return x
        return self.ffn_half.extend(x, self.ffn)


def by_mixer(
    decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
) -> Sequential:
    """Post-norms around attention and pre-norms around other mixers (OLMo Hybrid)."""
    half = PostNorm if isinstance(mixer, Attention) else PreNorm
    return Sequential(decoder, mixer, ffn, context, half=half)


def with_gated_cross(
    decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
) -> nn.Module:
    """Layers of attention to the states of an encoder are gated, others pre-normed (Llama 3.2
    Vision)."""
    if isinstance(mixer, CrossAttention):
        return GatedCross(decoder, mixer, ffn, context)
    return Sequential(decoder, mixer, ffn, context, half=PreNorm)


class Crossed(Sequential):
    """Pre-normed, where attention to the states of an encoder is that of the tokens which see some
    (mBART, arXiv:2001.08210)."""

    def __init__(
        self,
        decoder: spec.Decoder,
        mixer: nn.Module | None,
        ffn: nn.Module | None,
        context: BuildContext,
    ) -> None:
        super().__init__(decoder, mixer, ffn, context, half=PreNorm)
        self._crosses = isinstance(mixer, CrossAttention)

    def _mixed(self, x: Residual, step: ForwardContext, pages: Tensor) -> Residual:
        if not self._crosses:
            return super()._mixed(x, step, pages)
        if step.cross is None:
            return x
        x, places = added(x), step.cross.places
        attending = added(super()._mixed(x.index_select(0, places), step, pages))
        return x.index_copy(0, places, attending)


class Absent(Bare):
    """The place of a layer that another stage of the pipeline has."""

    mixer = ffn = None

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """Never called."""
        raise AssertionError("this layer is in another stage")


class Joined(Bare):
    """The first layer of EAGLE-3 (arXiv:2503.01840): attention over an embedding and a hidden
    state, each normed, side by side; then the ffn half of a pre-norm layer.

    Args:
        mixer: its input is twice as wide as its output.
        residual_normed: whether the residual stream continues with the normed hidden state.
    """

    def __init__(
        self,
        decoder: spec.Decoder,
        mixer: nn.Module,
        ffn: nn.Module,
        context: BuildContext,
        *,
        residual_normed: bool,
    ) -> None:
        super().__init__()
        self.mixer, self.ffn, self._residual_normed = mixer, ffn, residual_normed
        self.embedding_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.hidden_norm = norm(decoder.norm, decoder.hidden, "joined_norm", context)
        self.ffn_half = PreNorm(decoder, "ffn", context)

    def forward(
        self, embedded: Tensor, hidden: Tensor, step: ForwardContext, pages: Tensor
    ) -> Tensor:
        """[T, hidden] each to the stream [T, hidden]."""
        normed = self.hidden_norm(hidden)
        joined = torch.cat((self.embedding_norm(embedded), normed), -1)
        x = self.mixer(joined, step, pages, normed if self._residual_normed else hidden)
        out: Tensor = self.ffn_half(x, self.ffn)
        return out


class Parallel(Bare):
    """x + mixer(norm(x)) + ffn(norm(x)) (GPT-J, PaLM); with `shared` both use the same norm."""

    def __init__(
        self,
        decoder: spec.Decoder,
        mixer: nn.Module,
        ffn: nn.Module,
        context: BuildContext,
        *,
        shared: bool,
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.ffn_norm = None if shared else norm(decoder.norm, decoder.hidden, "ffn_norm", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        normed = self.mixer_norm(x)
        other = normed if self.ffn_norm is None else self.ffn_norm(x)
        out: Tensor = self.ffn(other, self.mixer(normed, step, pages, x))
        return out


class Shortcut(nn.Module):
    """A pre-norm layer; a parallel mixture of experts joins the stream after the next layer."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.ffn_norm = norm(decoder.norm, decoder.hidden, "ffn_norm", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        x = self.mixer(self.mixer_norm(x), step, pages, x)
        normed = self.ffn_norm(x)
        if isinstance(self.ffn, ShortcutMoe):
            step.pending.append(self.ffn.branch(normed, None))
        out: Tensor = self.ffn(normed, x)
        return out if isinstance(self.ffn, ShortcutMoe) else out + step.pending.pop()


class ByModality(Bare):
    """A pre-norm layer whose experts depend on what a token stands for, see
    `spec.ModalityMoe`."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, ffn
        self._has_experts = isinstance(ffn, ModalityMoe)
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.ffn_norm = norm(decoder.norm, decoder.hidden, "ffn_norm", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        x = self.mixer(self.mixer_norm(x), step, pages, x)
        normed = self.ffn_norm(x)
        out: Tensor = self.ffn(normed, *((step.vision,) if self._has_experts else ()), x)
        return out


class Beside(Bare):
    """Two parallel mixers after one norm (Falcon-H1, arXiv:2507.22448): the first is a layer of its
    own that hands its output to the next one, which adds both to the stream and has the ffn."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module | None, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn, blend = mixer, ffn, decoder.blend
        self._scales = blend.linear if isinstance(mixer, Carrying) else blend.attention
        self._ffn_scale = blend.ffn[1]
        self.mixer_norm = (
            norm(decoder.norm, decoder.hidden, "mixer_norm", context) if ffn is None else None
        )
        self.ffn_norm = (
            None if ffn is None else norm(decoder.norm, decoder.hidden, "ffn_norm", context)
        )

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        before, behind = self._scales
        normed = step.pending.pop() if self.mixer_norm is None else self.mixer_norm(x)
        mixed = behind * self.mixer(normed * before, step, pages, None)
        if self.ffn is None or self.ffn_norm is None:
            step.pending.extend((mixed, normed))
            return x
        x = x + (step.pending.pop() + mixed)
        out: Tensor = x + self._ffn_scale * self.ffn(self.ffn_norm(x), None)
        return out


class Blended(Bare):
    """old * norm(x) + new * f(norm(x)) with the model's weights (MiniMax-01, arXiv:2501.08313)."""

    def __init__(
        self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn, self._blend = mixer, ffn, decoder.blend
        self._mixer_blend = decoder.blend.attention
        if isinstance(mixer, LinearAttention):
            self._mixer_blend = decoder.blend.linear
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)
        self.ffn_norm = norm(decoder.norm, decoder.hidden, "ffn_norm", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        (old, new), normed = self._mixer_blend, self.mixer_norm(x)
        x = old * normed + new * self.mixer(normed, step, pages, None)
        (old, new), normed = self._blend.ffn, self.ffn_norm(x)
        out: Tensor = old * normed + new * self.ffn(normed, None)
        return out


class SharedTransformer(Bare):
    """The shared block of a hybrid layer (Zamba2, arXiv:2411.15242) without residuals: it hands
    linear(ffn(norm(attention(norm([x, embeddings]))))) to the mixer of the next layer."""

    def __init__(
        self, decoder: spec.Decoder, mixer: SharedAttention, ffn: SharedGlu, context: BuildContext
    ) -> None:
        super().__init__()
        self.mixer, self.ffn, hidden = mixer, ffn, decoder.hidden
        self.mixer_norm = norm(decoder.norm, 2 * hidden, "shared_norm", context)
        self.ffn_norm = norm(decoder.norm, hidden, "shared_ffn_norm", context)
        self.output = Linear(hidden, {"shared_output": hidden}, context)

    def share(self, owner: SharedTransformer) -> None:
        """Use the weights of the first layer of the block for all but adapters and `output`."""
        self.mixer.share(owner.mixer)
        self.ffn.share(owner.ffn)
        self.mixer_norm, self.ffn_norm = owner.mixer_norm, owner.ffn_norm

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden], which is returned as it is."""
        _keep_embedded(x, step)
        normed = self.mixer_norm(beside_embeddings(x, step))
        attended = self.mixer(normed, step, pages, None)
        step.pending.append(self.output(self.ffn(self.ffn_norm(attended), None)))
        return x


class AfterTransformer(Bare):
    """x + mixer(norm(x + what a `SharedTransformer` before it has handed over))."""

    def __init__(self, decoder: spec.Decoder, mixer: nn.Module, context: BuildContext) -> None:
        super().__init__()
        self.mixer, self.ffn = mixer, None
        self.mixer_norm = norm(decoder.norm, decoder.hidden, "mixer_norm", context)

    def forward(self, x: Tensor, step: ForwardContext, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        _keep_embedded(x, step)
        merged = x + step.pending.pop() if step.pending else x
        out: Tensor = self.mixer(self.mixer_norm(merged), step, pages, x)
        return out


def _keep_embedded(x: Tensor, step: ForwardContext) -> None:
    """The input of the first layer that runs is the embeddings."""
    if not step.embedded:
        step.embedded.append(x)


def beside_shared(
    decoder: spec.Decoder, mixer: nn.Module | None, ffn: nn.Module | None, context: BuildContext
) -> nn.Module:
    """The halves of a hybrid layer: the shared block, or nothing, and the mixer after it."""
    if mixer is None:
        return Sequential(decoder, None, None, context, half=PreNorm)
    if isinstance(mixer, SharedAttention) and isinstance(ffn, SharedGlu):
        return SharedTransformer(decoder, mixer, ffn, context)
    return AfterTransformer(decoder, mixer, context)


STYLES: dict[str, Callable[..., nn.Module]] = {
    "pre": partial(Sequential, half=PreNorm),
    "conditioned": partial(Sequential, half=Conditioned),
    "unnormed": partial(Sequential, half=PreNorm, mixer_norm=False),
    "scaled": partial(Sequential, half=ScaledNorm),
    "post": partial(Sequential, half=PostNorm),
    "scaled_sandwich": ScaledSandwich,
    "sandwich": partial(Sequential, half=SandwichNorm),
    "after": partial(Sequential, half=AfterNorm),
    "normed": partial(Sequential, half=NormedStream),
    "by_mixer": by_mixer,
    "gated_cross": with_gated_cross,
    "altup": AltUpBlock,
    "cross": Crossed,
    "shortcut": Shortcut,
    "by_modality": ByModality,
    "blended": Blended,
    "beside": Beside,
    "shared": beside_shared,
    "parallel": partial(Parallel, shared=True),
    "parallel_two_norms": partial(Parallel, shared=False),
}
"""Blocks by `spec.Decoder.style`."""
