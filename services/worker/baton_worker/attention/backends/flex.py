"""Attention whose mask is a function: FlexAttention (Dong et al. 2024, arXiv:2412.05496), paged.

The keys of all rows of a step are gathered, so a step is one attention of T queries over K keys,
and a mask separates the rows:

    queries   [ row 0 | row 1       | row 2 ]
    keys      [ pages of row 0 | pages of row 1 | pages of row 2 ]
    seen      own row, `mask_mod` of positions, window, chunk, range of keys, tree

On a GPU the masks and the changes to scores are compiled into one kernel, and blocks of 128 queries
and keys that see nothing of each other cost nothing. On a CPU torch computes every score: use it
only for what no other backend supports, and for comparison.

A custom mask is a custom backend: `functools.partial(FlexBackend, my_mask_mod)`, under
a name in the entry-point group `baton.attention`, is taken with `--worker.attention-backend NAME`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    flex_attention,
)

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import fits
from baton_worker.attention.backends.gpu_packages import ragged
from baton_worker.attention.lse_merge import Partial, merge
from baton_worker.attention.tree_mask import MOST_TOKENS, TreeMask
from baton_worker.kernels.kv_pages import gather, parts
from baton_worker.kernels.page_layout import EVERY

MaskMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Number of a row in the step, query head, position of a query and of a key in their text, int64
scalars, to whether the key is seen, a bool scalar: what `torch.nn.attention.flex_attention` calls a
mask_mod. It is traced, so it must not branch on what they hold."""
ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
_NARROWEST = 16
"""Channels of a head, for the kernels that torch generates."""
_UNFUSED = "flex_attention called without torch.compile"


def causal(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """True where the key is the query itself or before it."""
    return key <= query


@dataclass(frozen=True, slots=True)
class _Keys:
    """Row and position of each query and key of the gathered attention, on the device."""

    row: Tensor
    """int64 [T], of each query."""
    position: Tensor
    """int64 [T]: where each query is in its text."""
    owner: Tensor
    """int64 [K], the row of each key; -1 where a page has none."""
    number: Tensor
    """int64 [K]: which key of its row it is."""
    place: Tensor
    """int64 [K]: where it is in the text, which for a token of a tree is by its depth."""
    fresh: Tensor
    """int64 [K]: which new token of its row it belongs to, negative for those before."""


@dataclass(frozen=True, slots=True)
class _Plan:
    call: AttentionSpec
    pages: Tensor  # int64 [pages of all rows]
    mask: BlockMask
    score: ScoreMod | None


class FlexBackend:
    """One call of `flex_attention` for a whole step.

    Args:
        mask_mod: which keys of its row a token attends to, before the window, chunk, range and tree
            of the call are applied. Later keys are available if they belong to this step or an
            earlier one.
    """

    layouts = EVERY
    capture_blocker = "the mask of FlexAttention is cut into blocks for each step, on the host"
    launch_blocker = None

    def __init__(self, mask_mod: MaskMod = causal) -> None:
        self._mask_mod = mask_mod

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what its tensors cannot represent or torch's generated kernels do not support."""
        if call.device.type not in ("cpu", "cuda"):
            return f"it does not run on {call.device.type}"
        if not call.dtype.is_floating_point or call.dtype.itemsize < 2:
            return f"pages of {call.dtype} need a kernel that widens them"
        if call.latent and call.codes:
            return f"it reads no {call.codes} latents"
        if call.most_keys is not None:
            return "it scores the keys of all rows, and chosen ones are a row for each token"
        if call.device.type == "cuda" and (least := min(call.head_dim, call.width)) < _NARROWEST:
            return f"its kernels start at {_NARROWEST} channels of a head, not {least}"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Build the block mask and the list of pages to gather."""
        assert fits(batch, call)
        pages, keys = _keys(batch)
        mask = and_masks(*_masks(keys, batch, call, self._mask_mod))
        # A custom mask may differ between heads.
        heads = None if self._mask_mod is causal else call.num_heads
        shape = (len(keys.row), len(keys.owner))
        blocks = create_block_mask(mask, None, heads, *shape, device=call.device)
        return _Plan(call, pages, blocks, _score(keys, call))

    def forward(
        self,
        plan: _Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        call, rows = plan.call, gather(pages, plan.pages)
        key, value = parts(rows, call.head_dim, call.codes, call.dtype, latent=call.latent)
        heads = (query, key, value[..., : call.width])
        q, k, v = (x.to(call.dtype).transpose(0, 1)[None] for x in heads)
        out: Tensor
        out, aux = _attention(call.device.type)(
            *(q, k, v),
            score_mod=plan.score,
            block_mask=plan.mask,
            scale=call.scale,
            enable_gqa=True,
            return_aux=AuxRequest(lse=lse is not None or sinks is not None),
        )
        out = out[0].transpose(0, 1).flatten(1)
        return out if aux.lse is None else _finished(out, aux.lse[0].T.float(), sinks, lse)


@functools.cache
def _attention(device: str) -> Callable[..., Any]:
    """`flex_attention`, compiled on a GPU."""
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else _unfused


def _finished(out: Tensor, sums: Tensor, sinks: Tensor | None, lse: Tensor | None) -> Tensor:
    """Add the sinks to the softmax; `sums` are log-sum-exps, float32 [T, num_heads]."""
    part = Partial(out, sums)
    part = part if sinks is None else merge([part], sinks)
    if lse is not None:
        lse.copy_(part.lse)
    return part.out


def _unfused(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _UNFUSED)
        return flex_attention(*args, **options)


def _keys(batch: AttentionBatch) -> tuple[Tensor, _Keys]:
    """(pages of a step, row after row, int64 [any]; row and position of their keys)."""
    device, size = batch.slot_mapping.device, batch.page_size
    counts, starts = np.asarray(batch.query_lens), np.asarray(batch.num_computed)
    used = -(-(starts + counts) // size)
    owner, number = ragged(used * size)
    inside = number < (starts + counts)[owner]
    row, new = ragged(counts)
    of_row, at = ragged(used)
    pages = batch.block_table[torch.from_numpy(of_row).to(device), torch.from_numpy(at).to(device)]
    arrays = (row, starts[row] + new, np.where(inside, owner, -1), number, number)
    keys = _Keys(*(torch.from_numpy(x).to(device) for x in (*arrays, number - starts[owner])))
    return pages.long(), keys if batch.trees is None else _grown(keys, batch, batch.trees)


def _grown(keys: _Keys, batch: AttentionBatch, trees: TreeMask) -> _Keys:
    """Positions of new tokens, by their depth in a tree."""
    token = batch.query_start_loc.long()[keys.owner] + keys.fresh
    inside = (keys.fresh >= 0) & (keys.owner >= 0)
    behind = trees.depths[torch.where(inside, token, 0)] - keys.fresh
    place = keys.place + torch.where(inside, behind, 0)
    first = batch.query_start_loc.long()[keys.row]
    order = torch.arange(len(first), device=first.device) - first
    return replace(keys, position=keys.position - order + trees.depths, place=place)


def _masks(
    keys: _Keys, batch: AttentionBatch, call: AttentionSpec, own: MaskMod
) -> Iterator[MaskMod]:
    """Conditions that a key must meet; `q` and `k` index the two axes of the gathered attention."""
    row, position, owner, place = keys.row, keys.position, keys.owner, keys.place
    yield lambda b, h, q, k: row[q] == owner[k]
    if (last := batch.last_keys) is None:
        yield lambda b, h, q, k: own(row[q], h, position[q], place[k])
    else:
        yield (
            lambda b, h, q, k: (
                own(row[q], h, position[q], place[k])
                | ((place[k] > position[q]) & (place[k] <= last[q]))
            )
        )
    if (window := call.window) is not None:
        yield lambda b, h, q, k: place[k] > position[q] - window
    if (chunk := call.chunk) is not None:
        yield lambda b, h, q, k: place[k] // chunk == position[q] // chunk
    if batch.ranges is not None:
        first, end = torch.tensor(batch.ranges, device=row.device).unbind(1)
        number = keys.number
        yield lambda b, h, q, k: (number[k] >= first[row[q]]) & (number[k] < end[row[q]])
    if batch.trees is not None:
        yield _related(keys.fresh, batch.trees.ancestors)


def _related(fresh: Tensor, ancestors: Tensor) -> MaskMod:
    """Among a row's new tokens, a token attends only to its ancestors."""
    bit = fresh.clamp(0, MOST_TOKENS - 1)
    always = (fresh < 0) | (fresh >= MOST_TOKENS)
    return lambda b, h, q, k: always[k] | ((ancestors[q] >> bit[k]) & 1 > 0)


def _score(keys: _Keys, call: AttentionSpec) -> ScoreMod | None:
    """Score modifications after `scale`: soft cap, then ALiBi slope."""
    cap = call.softcap
    if call.slopes is None:
        return None if cap is None else lambda s, b, h, q, k: cap * torch.tanh(s / cap)
    slopes = torch.tensor(call.slopes, device=keys.row.device)
    position, place = keys.position, keys.place

    def sloped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        bent = score if cap is None else cap * torch.tanh(score / cap)
        return bent + slopes[h] * (place[k] - position[q])

    return sloped
