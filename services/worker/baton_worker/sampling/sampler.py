"""Batched sampling: one vectorised pass per operation, over the rows that need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.kernels.sampling import draw, most_probable
from baton_worker.sampling.parameters import Parameters
from baton_worker.sampling.penalties import Entries, History
from baton_worker.sampling.philox import uniform
from baton_worker.sampling.sampler_backend import SamplerBackend
from baton_worker.sampling.token_rules import TokenRules
from baton_worker.sampling.truncation import drop, threshold
from baton_worker.sampling.typical import keep_typical
from baton_worker.sampling.vocab_blocks import BLOCK, blocks
from baton_worker.structured_output.bitmask import Mask

Column: TypeAlias = npt.NDArray[np.int64]
"""[R]"""
Tokens: TypeAlias = npt.NDArray[np.int32]
"""[R]"""

_DEVICE_COLUMNS = ("top_k", "top_p", "min_p", "key_low", "key_high")


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Logits adjustments before sampling, in order of application."""

    bias: Entries | None = None
    forbidden: Entries | None = None
    history: History | None = None
    rules: TokenRules | None = None
    mask: Mask | None = None

    def apply(self, logits: Tensor) -> None:
        """Change `logits` float32 [R, V] in place."""
        if self.bias is not None:
            self.bias.add(logits)
        if self.forbidden is not None:
            self.forbidden.add(logits)
        if self.history is not None:
            self.history.penalise(logits)
        if self.rules is not None:
            self.rules.apply(logits)
        if self.mask is not None:
            self.mask.apply(logits)


class Sampler:
    """Draws tokens from logits.

    Args:
        backend: which code does.
    """

    def __init__(self, backend: SamplerBackend | None = None) -> None:
        self._backend = SamplerBackend() if backend is None else backend

    def sample(self, logits: Tensor, parameters: Parameters, index: Column) -> Tokens:
        """Sample one token per row.

        A row's token is a function of its own logits, parameters and index, independent of the
        rest of the batch.

        Args:
            logits: float32 [R, V], finite or -inf, at least one finite in each row; overwritten.
            parameters: [R].
            index: position of each new token in its log, int64 [R].

        Returns:
            int32 [R].
        """
        if not self._backend.in_triton(logits.device):
            return self._each(logits, parameters, index)
        if parameters["greedy"].all():
            return self._most_probable(logits)
        # Torch handles locally typical sampling; both give the same token for a greedy row.
        typical = parameters["typical"]
        if typical.all():
            return self._each(logits, parameters, index)
        if not typical.any():
            return _host(_fused(logits, parameters, index))
        tokens = np.empty(len(logits), np.int32)
        tokens[~typical] = _host(_fused(*_some(~typical, logits, parameters, index)))
        tokens[typical] = self._each(*_some(typical, logits, parameters, index))
        return tokens

    def launches_on(self, device: torch.device) -> bool:
        """True if `launch` samples on this device."""
        return self._backend.in_triton(device)

    @staticmethod
    def launch(
        logits: Tensor,
        columns: dict[str, Tensor],
        index: Tensor,
        *,
        greedy: bool,
        truncations: Mapping[str, bool] = MappingProxyType({}),
    ) -> tuple[Tensor, Tensor]:
        """Like `sample`, without waiting for the device; no row is locally typical.

        Args:
            logits: float32 [R, V].
            columns: `device_columns` on the device.
            index: int64 [R], as for `sample`.
            greedy: whether all rows are.
            truncations: see `truncations`; empty where the host does not know.

        Returns:
            Tokens [R], and whether the logits of each row are finite, bool [R]; where they are not,
            the token is any number.
        """
        if greedy:
            most, tokens = logits.max(1)
            return tokens, most.isfinite()
        from baton_worker.kernels.triton import sampling

        arguments: Any = columns | dict[str, Any](truncations)
        tokens, finite = sampling.sample(logits, index=index, **arguments)
        return tokens, finite > 0

    def _each(self, logits: Tensor, parameters: Parameters, index: Column) -> Tokens:
        """Like `sample`, without Triton."""
        greedy = parameters["greedy"]
        if not greedy.any():
            return self._draw(logits, parameters, index)
        tokens = self._most_probable(logits)
        if not greedy.all():
            tokens[~greedy] = self._draw(*_some(~greedy, logits, parameters, index))
        return tokens

    def _most_probable(self, logits: Tensor) -> Tokens:
        """The first maximum of each row."""
        if self._backend.in_cpp(logits.device):
            return most_probable(logits.contiguous())
        if logits.device.type == "cpu":
            # An order of magnitude faster than torch's on a CPU.
            best: Tokens = logits.numpy().argmax(1).astype(np.int32)
            return best
        return _host(logits.argmax(1))

    def _draw(self, logits: Tensor, parameters: Parameters, index: Column) -> Tokens:
        """Inverse-CDF sampling of each row at its uniform. The backend of a row depends on that row
        alone."""
        typical = parameters["typical"]
        if not self._backend.in_cpp(logits.device) or typical.all():
            return _host(_draw_in_torch(logits, parameters, index))
        if not typical.any():
            return _draw_in_cpp(logits, parameters, index)
        tokens = np.empty(len(logits), np.int32)
        tokens[~typical] = _draw_in_cpp(*_some(~typical, logits, parameters, index))
        tokens[typical] = _host(_draw_in_torch(*_some(typical, logits, parameters, index)))
        return tokens


def _some(
    chosen: npt.NDArray[np.bool_], logits: Tensor, parameters: Parameters, index: Column
) -> tuple[Tensor, Parameters, Column]:
    rows = torch.from_numpy(np.flatnonzero(chosen)).to(logits.device)
    return logits.index_select(0, rows), parameters[chosen], index[chosen]


def _fused(logits: Tensor, parameters: Parameters, index: Column, rows: int = 1) -> Tensor:
    """Fused sampling on the device, int32 [R]; `_draw` handles locally typical rows."""
    from baton_worker.kernels.triton import sampling

    columns = {
        name: torch.from_numpy(values).to(logits.device)
        for name, values in device_columns(parameters).items()
    }
    there = torch.from_numpy(index).to(logits.device)
    arguments: Any = columns | truncations(parameters)
    return sampling.sample(logits, index=there, rows=rows, **arguments)[0]


def device_columns(parameters: Parameters) -> dict[str, npt.NDArray[Any]]:
    """The parameters that a device needs to sample, by name: a contiguous array each."""
    greedy = parameters["greedy"]
    warmth = 1.0 / np.where(greedy, 1.0, parameters["temperature"])
    columns = {name: parameters[name].copy() for name in _DEVICE_COLUMNS}
    return columns | {"warmth": warmth.astype(np.float32), "greedy": greedy.astype(np.int8)}


def truncations(parameters: Parameters) -> dict[str, bool]:
    """The launches of a device's sampler that these rows need."""
    drawn = ~parameters["greedy"]
    return {
        "has_top_k": bool((drawn & (parameters["top_k"] > 0)).any()),
        "has_top_p": bool((drawn & (parameters["top_p"] < 1)).any()),
    }


def _warmth(parameters: Parameters) -> npt.NDArray[np.float32]:
    return (1.0 / parameters["temperature"]).astype(np.float32)


def _draw_in_cpp(logits: Tensor, parameters: Parameters, index: Column) -> Tokens:
    uniforms = uniform(parameters["key_low"], parameters["key_high"], index)
    columns = {name: parameters[name] for name in ("top_k", "top_p", "min_p")}
    return draw(logits.contiguous(), warmth=_warmth(parameters), uniform=uniforms, **columns)


def _draw_in_torch(logits: Tensor, parameters: Parameters, index: Column) -> Tensor:
    """int64 [R]"""
    device, warmth = logits.device, _warmth(parameters)
    # Subtract the maximum first, so that no temperature can overflow.
    scaled = logits.sub_(logits.amax(1, keepdim=True))
    weights = scaled.mul_(torch.from_numpy(warmth).to(device)[:, None]).softmax(1)
    if parameters["typical"].any():
        _keep_typical(weights, parameters)
    if parameters["truncated"].any():
        _truncate(weights, parameters)
    uniforms = uniform(parameters["key_low"], parameters["key_high"], index)
    return invert(weights, torch.from_numpy(uniforms).to(device))


def _keep_typical(weights: Tensor, parameters: Parameters) -> None:
    """Zero the tokens dropped by locally typical sampling, in place, in rows that use it."""
    chosen = np.flatnonzero(parameters["typical"])
    rows = torch.from_numpy(chosen).to(weights.device)
    part = weights.index_select(0, rows)
    keep_typical(part, torch.from_numpy(parameters["typical_p"][chosen]).to(weights.device))
    weights.index_copy_(0, rows, part)


def _truncate(weights: Tensor, parameters: Parameters) -> None:
    """Zero the tokens dropped by top-k, top-p and min-p, in place, in rows that use them."""
    chosen = np.flatnonzero(parameters["truncated"])
    rows = torch.from_numpy(chosen).to(weights.device)
    top_k, top_p, min_p = (
        torch.from_numpy(parameters[name][chosen]).to(weights.device)
        for name in ("top_k", "top_p", "min_p")
    )
    part = weights if len(rows) == len(weights) else weights.index_select(0, rows)
    drop(part, threshold(part, top_k, top_p, min_p))
    if part is not weights:
        weights.index_copy_(0, rows, part)


def invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token, in vocabulary order, whose cumulative share of the weights exceeds u.

    Args:
        weights: float32 [R, V], non-negative, not all zero in a row; need not sum to 1.
        uniforms: float64 [R] in (0, 1).

    Returns:
        int64 [R]; never a token of weight 0.
    """
    rows, parts = torch.arange(len(weights), device=weights.device), blocks(weights)
    outer = parts.sum(2).double().cumsum(1)
    target = uniforms * outer[:, -1]
    block = _first_above(outer, target)
    before = outer.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0] * (block > 0)
    inner = parts[rows, block].double().cumsum(1)
    return block * BLOCK + _first_above(inner, target - before)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """Index of the first entry of each row that exceeds its target, int64 [R]."""
    # Two sums of the same numbers may differ in the last bits; clamp the target below the last
    # entry.
    below = torch.nextafter(cumulative[:, -1], torch.zeros_like(target))
    return (cumulative <= torch.minimum(target, below)[:, None]).sum(1)


def _host(tokens: Tensor) -> Tokens:
    return tokens.to("cpu", torch.int32).numpy()
