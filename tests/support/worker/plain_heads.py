"""Draft heads recomputed over whole sequences, without pages, with the layers of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaModel

from tests.support.worker.draft_heads import Tensors

Norm = Callable[[Tensor], Tensor]
Reader = Callable[[list[int]], Tensor]


def tiny_llama(config: dict[str, Any], width: int | None = None) -> Any:
    """A random Llama body in float32; its attention reads `width` channels if that is given."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        fields = {name: value for name, value in config.items() if name != "architectures"}
        body = LlamaModel(LlamaConfig(**fields)).eval()
        for layer in body.layers:
            attention = layer.self_attn
            for part in ("q_proj", "k_proj", "v_proj") if width else ():
                rows = getattr(attention, part).out_features
                setattr(attention, part, nn.Linear(width or 0, rows, bias=False))
        for name, parameter in body.named_parameters():
            if "norm" in name:
                parameter.data.normal_(1.0, 0.2)
            else:
                parameter.data.normal_(0.0, parameter.shape[-1] ** -0.5)
    return body


def as_layer(body: Any, prefix: str) -> Tensors:
    """The weights of a body's layers, under a prefix in which `{layer}` is the number of each."""
    return {
        prefix.format(layer=number) + name: tensor.detach().clone()
        for number, layer in enumerate(body.layers)
        for name, tensor in layer.state_dict().items()
    }


def drafts_of_levels(levels: Sequence[PlainHead], states: Reader) -> Callable[[Any, Any], Any]:
    """What `check_drafts` compares several layers with, each of which makes one draft; `states` are
    the target's hidden states of tokens."""

    @torch.inference_mode()
    def drafts(tokens: list[int], hidden: Tensor) -> list[int]:
        made, known = states(tokens[:-1]), [*tokens]
        for number, level in enumerate(levels):
            _, made, draft = level.level(torch.tensor(known[1 + number :]), made)
            known.append(draft)
        return known[len(tokens) :]

    return drafts


class OracleTarget:
    """A plain re-computation of a target, called as a model of transformers is."""

    def __init__(self, oracle: Any) -> None:
        self._oracle = oracle
        self.get_input_embeddings = lambda: oracle.embed
        self.get_output_embeddings = lambda: oracle.head

    def __call__(self, tokens: Tensor, **_: Any) -> Any:
        return SimpleNamespace(hidden_states=[self._oracle.hidden(tokens[0])[None]])


class OracleBody:
    """One layer of a plain re-computation, called as a body of transformers is."""

    def __init__(self, block: Callable[[Tensor], Tensor]) -> None:
        self._block = block

    def __call__(self, inputs_embeds: Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self._block(inputs_embeds[0])[None])


class _Said(nn.Module):
    """In the place of a norm: what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class PlainHead:
    """A head over `body`, a transformers model without a table or a final norm of its own.

    Args:
        target: folder of the target, whose table and language head are used; or the model, or an
            `OracleTarget`.
        fusion, bias: projects an embedding and a hidden state, or several hidden states.
        reads: layers of the target whose inputs are read; none: its last hidden states.
        embedding_norm, hidden_norm: before the projection.
        final_norm: before the language head; `carries_normed`: also for the next draft.
        hidden_first: the hidden state is the first half of what is projected.
        head: a language head of its own, for all tokens.
    """

    def __init__(
        self,
        body: Any,
        target: Any,
        fusion: Tensor,
        bias: Tensor | None = None,
        *,
        reads: tuple[int, ...] = (),
        embedding_norm: Norm = lambda x: x,
        hidden_norm: Norm = lambda x: x,
        final_norm: Norm = lambda x: x,
        carries_normed: bool = False,
        hidden_first: bool = False,
        head: Tensor | None = None,
    ) -> None:
        self._body, self._fusion, self._bias, self._reads = body, fusion, bias, reads
        body.norm = nn.Identity()
        self._model = target
        if isinstance(target, Path):
            self._model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self._norms = embedding_norm, hidden_norm
        self._final_norm, self._carries_normed = final_norm, carries_normed
        self._hidden_first = hidden_first
        self._ids: Tensor | None = None
        self._joined: tuple[Any, Norm, bool] | None = None
        self._head: Callable[[Tensor], Tensor] = self._model.get_output_embeddings()
        if head is not None:
            self._head = lambda x: x @ head.T

    def joined(self, weight: Tensor, *, residual_normed: bool) -> None:
        """The first layer attends over the normed embedding and hidden state, as in EAGLE-3."""
        first = self._body.layers[0]
        eps = first.input_layernorm.variance_epsilon
        self._joined = (
            first.input_layernorm,
            lambda x: F.rms_norm(x, x.shape[-1:], weight, eps),
            residual_normed,
        )
        first.input_layernorm = _Said()

    def own_head(self, norm: Tensor, head: Tensor, ids: Tensor) -> None:
        """A final norm, and a language head for some tokens."""
        eps = self._body.layers[0].post_attention_layernorm.variance_epsilon
        self._final_norm = lambda x: F.rms_norm(x, x.shape[-1:], norm, eps)
        self._head, self._ids = (lambda x: x @ head.T), ids

    def level(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, int]:
        """One layer of several: of tokens [T] and hidden states [T, hidden] the stream, what the
        next layer reads of it, and the draft behind the last."""
        stream = self._stream(tokens, hidden)
        normed = self._final_norm(stream)
        carried = normed if self._carries_normed else stream
        return stream, carried, int(self._head(normed[-1]).argmax())

    def _stream(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """[T] tokens and [T, hidden] to the stream [T, hidden]."""
        embedded = self._model.get_input_embeddings()(tokens)
        if self._joined is not None:
            embedding_norm, hidden_norm, residual_normed = self._joined
            normed = hidden_norm(hidden)
            self._body.layers[0].input_layernorm.value = torch.cat(
                (embedding_norm(embedded), normed), -1
            )[None]
            x = normed if residual_normed else hidden
        else:
            parts = [self._norms[0](embedded), self._norms[1](hidden)]
            parts = parts[::-1] if self._hidden_first else parts
            x = F.linear(torch.cat(parts, -1), self._fusion, self._bias)
        out: Tensor = self._body(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
        return out

    @torch.inference_mode()
    def _drafts(self, tokens: list[int], most: int) -> list[int]:
        out = self._model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
        hidden = out.hidden_states[-1][0]
        if self._reads:
            hidden = torch.cat([out.hidden_states[layer][0] for layer in self._reads], -1)
            hidden = hidden @ self._fusion.T
        behind, drafts = tokens[1:], list[int]()
        for _ in range(most):
            stream = self._stream(torch.tensor(behind), hidden)[-1]
            normed = self._final_norm(stream)
            token = int(self._head(normed).argmax())
            drafts.append(token if self._ids is None else int(self._ids[token]))
            behind = [*behind, drafts[-1]]
            carried = normed if self._carries_normed else stream
            hidden = torch.cat((hidden, carried[None]))
        return drafts

    def drafts(self, most: int) -> Callable[[list[int], Tensor], list[int]]:
        """What `check_drafts` compares with."""
        return lambda tokens, hidden: self._drafts(tokens, most)
