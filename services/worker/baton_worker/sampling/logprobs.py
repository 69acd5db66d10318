"""Log-probabilities of chosen tokens and their most probable alternatives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton.protocol import Logprobs
from baton_worker.sampling.top_k import largest


def describe(
    logits: Tensor,
    tokens: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> Logprobs:
    """Log-probabilities of one token per row.

    Values are the log-softmax of the raw logits, before bias, penalties and temperature. Tokens of
    equal probability share the better rank.

    Args:
        logits: raw float32 [N, V].
        tokens: the sampled tokens, int32 [N].
        counts: number of alternatives per row, int64 [N], at most V.
        rows: index in the message of the token that each entry describes, int64 [N].
    """
    chosen = torch.from_numpy(tokens).to(logits.device, torch.int64)[:, None]
    values = logits.log_softmax(1)
    chosen_values = values.gather(1, chosen)
    counts = counts.clip(0, logits.shape[1])
    top, top_ids = largest(values, int(counts.max(initial=0)))
    requested = np.arange(top.shape[1]) < counts[:, None]
    ranks = values.gt_(chosen_values).sum(1) + 1
    return Logprobs(
        rows=rows.astype("<u4").tobytes(),
        chosen=_bytes(chosen_values[:, 0], "<f4"),
        ranks=_bytes(ranks, "<u4"),
        counts=counts.astype("u1").tobytes(),
        top_ids=top_ids.cpu().numpy()[requested].astype("<i4").tobytes(),
        top_values=top.cpu().numpy()[requested].astype("<f4").tobytes(),
    )


def concatenate(parts: list[Logprobs]) -> Logprobs:
    """Concatenate the columns of several messages; their rows must be distinct."""
    return Logprobs(*(b"".join(column) for column in zip(*map(_columns, parts), strict=True)))


def _columns(part: Logprobs) -> tuple[bytes, ...]:
    return part.rows, part.chosen, part.ranks, part.counts, part.top_ids, part.top_values


def _bytes(values: Tensor, kind: str) -> bytes:
    return values.cpu().numpy().astype(kind).tobytes()
