"""Functions of single values, whose result must not depend on where in a tensor a value stands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 64
"""Values that torch's loops on a CPU take at once: two of its widest vectors, of its narrowest
floats."""
_GRAIN = 32_768
"""So many values at least torch gives to a thread (its `GRAIN_SIZE`) ..."""
_PIECE = 16_384
"""... but GELU's loop shares any more than these among all threads."""


def _cut_between_vectors(numel: int) -> bool:
    """Whether torch gives each thread whole vectors of so many values."""
    if numel <= _PIECE:
        return True
    threads = torch.get_num_threads()
    shares = {ceil(numel / threads), ceil(numel / min(threads, ceil(numel / _GRAIN)))}
    return all(share % LANES == 0 for share in shares)


def in_lanes(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function of single values, with equal bits for equal values.

    On a CPU torch works on whole vectors, and singly on what is left over of a tensor or of a
    thread's share of it. The two differ in the last bit of an exponential: a row's result would
    depend on the rows beside it. Here every value has its place in a vector.
    """

    def placed(x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not x.ndim:
            return function(x)
        width = x.shape[-1]
        rows = (F.pad(x, (0, -width % LANES)) if width % LANES else x).contiguous()
        if _cut_between_vectors(rows.numel()):
            return function(rows)[..., :width]
        pieces = [function(piece) for piece in torch.split(rows.view(-1), _PIECE)]
        return torch.cat(pieces).view(rows.shape)[..., :width]

    return placed


SILU = in_lanes(F.silu)
GELU = in_lanes(F.gelu)
GELU_TANH = in_lanes(partial(F.gelu, approximate="tanh"))
sigmoid = in_lanes(torch.sigmoid)
tanh = in_lanes(torch.tanh)
exp = in_lanes(torch.exp)
exp2 = in_lanes(torch.exp2)
softplus = in_lanes(F.softplus)
