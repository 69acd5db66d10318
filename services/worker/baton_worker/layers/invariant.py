"""Elementwise functions whose result does not depend on a value's place in its tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.cpu.activation import activation_kernel, gate_kernel

LANES = 64
"""Values per iteration of torch's CPU loops: two of its widest vectors at its narrowest float."""
_GRAIN = 32_768
"""Minimum number of values per thread in torch (its `GRAIN_SIZE`)."""
_PIECE = 16_384
"""GELU's loop is shared among all threads above this number of values."""


def _cut_between_vectors(numel: int) -> bool:
    """Whether torch splits this many values among its threads at vector boundaries."""
    if numel <= _PIECE:
        return True
    threads = torch.get_num_threads()
    shares = {ceil(numel / threads), ceil(numel / min(threads, ceil(numel / _GRAIN)))}
    return all(share % LANES == 0 for share in shares)


def in_lanes(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap an elementwise function so that equal values give equal bits.

    On a CPU torch uses vector code, and scalar code for the remainder of a tensor or of a thread's
    share. The two differ in the last bit of an exponential, so a row's result would depend on the
    rest of the batch. Padding puts every value into a vector.
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


SILU = activation_kernel("silu", in_lanes(F.silu))
GELU = activation_kernel("gelu", in_lanes(F.gelu))
GELU_TANH = activation_kernel("gelu_tanh", in_lanes(partial(F.gelu, approximate="tanh")))
sigmoid = activation_kernel("sigmoid", in_lanes(torch.sigmoid))
QUICK_GELU = activation_kernel("quick_gelu", lambda x: x * sigmoid(1.702 * x))
tanh = activation_kernel("tanh", in_lanes(torch.tanh))
RELU = activation_kernel("relu", F.relu)
RELU2 = activation_kernel("relu2", lambda x: F.relu(x).square())
exp = in_lanes(torch.exp)
exp2 = in_lanes(torch.exp2)
softplus = in_lanes(F.softplus)
gated_silu = gate_kernel("silu", lambda x, gate: (x * SILU(gate.float())).to(gate.dtype))


def _shared(
    function: Callable[[Tensor], Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """The product of x [T, width] and a function of gates, each of which some channels share."""

    def gated(x: Tensor, gate: Tensor) -> Tensor:
        wide = torch.unflatten(x, 1, (gate.shape[1], -1))
        return wide.mul(function(gate)[..., None]).flatten(1)

    return gated


gated_sigmoid = gate_kernel("sigmoid", _shared(sigmoid))
GATES = {
    "sigmoid": gated_sigmoid,
    "softplus": gate_kernel("softplus", _shared(softplus)),
}
"""Gates by the function of `spec.OutputGate`."""
product = gate_kernel(None, torch.mul)
