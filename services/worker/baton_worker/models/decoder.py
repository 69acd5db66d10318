"""The decoder: residual styles and the forward loop."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from baton_worker.attention import AttentionBatch
from baton_worker.kv.cache import KVCache
from baton_worker.layers.attention import Attention
from baton_worker.layers.embedding import Embedding
from baton_worker.layers.layer import Layer, Site
from baton_worker.layers.linear import LanguageHead
from baton_worker.layers.norm import RmsNorm
from baton_worker.layers.rope import Rotary
from baton_worker.layers.step import Step
from baton_worker.models import spec


class PreNorm(nn.Module):
    """x + mixer(norm(x)), then x + ffn(norm(x)): the residual stream itself is never normed."""

    def __init__(self, decoder: spec.Decoder, mixer: nn.Module, ffn: nn.Module, site: Site) -> None:
        super().__init__()
        self.mixer_norm = RmsNorm(decoder.norm, decoder.hidden, "mixer_norm", site)
        self.mixer = mixer
        self.ffn_norm = RmsNorm(decoder.norm, decoder.hidden, "ffn_norm", site)
        self.ffn = ffn

    def forward(self, x: Tensor, step: Step, pages: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        x = self.mixer(self.mixer_norm(x), step, pages, x)
        out: Tensor = self.ffn(self.ffn_norm(x), x)
        return out


STYLES: dict[str, type[nn.Module]] = {"pre": PreNorm}
"""Where the norms sit around the residual stream, by `spec.Decoder.style`."""


class Model(nn.Module):
    """A causal language model over a paged cache. Holds weights, never the state of a request."""

    def __init__(self, decoder: spec.Decoder, blocks: Iterable[nn.Module], site: Site) -> None:
        super().__init__()
        self.embedding = Embedding(decoder.vocab, decoder.hidden, site)
        self.blocks = nn.ModuleList(blocks)
        self.norm = RmsNorm(decoder.norm, decoder.hidden, "norm", site)
        self.head = LanguageHead(
            decoder.hidden,
            decoder.vocab,
            site,
            tied_to=self.embedding.weight if decoder.head.tied else None,
        )
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        self._dtype = site.dtype
        self._rotaries = {a.rope: Rotary(a.rope, site.device) for a in attentions}
        self._backends = {a.call: a.backend for a in attentions}
        self.progress = 0
        """Layers run since the model was built: advances within a step, for whoever watches."""

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        """Run one ragged step and write its keys and values into the cache.

        Args:
            tokens: int64 [T], the new tokens of all rows, row after row.
            positions: int64 [T], their positions in their sequences.
            batch: which row each token belongs to and where its key and value go.
            cache: made from this model's spec, on its device, in its dtype.

        Returns:
            The final normed hidden states, [T, hidden].
        """
        step = Step(
            slots=batch.slots,
            angles={rope: r.angles(positions, self._dtype) for rope, r in self._rotaries.items()},
            plans={call: backend.plan(batch, call) for call, backend in self._backends.items()},
        )
        hidden: Tensor = self.embedding(tokens)
        for block, pages in zip(self.blocks, cache.layers, strict=True):
            hidden = block(hidden, step, pages)
            self.progress += 1
        hidden = self.norm(hidden)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] rows of `forward`'s result to float32 [R, vocab]."""
        logits: Tensor = self.head(hidden)
        return logits
