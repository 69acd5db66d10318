"""State updates of state-space layers: what tokens add to a page's state and read from it.

A head's state is a matrix S [key_dim, value_dim]. Let f[i] be the log decay from the start of the
page to its token i, and w[i] the weight of a token. Then token i reads, with a query q,

    exp(f[i]) q S + sum over j <= i of exp(f[i] - f[j]) w[j] (q . k[j]) v[j]

and the next page begins with

    exp(f[P - 1]) S + sum over all j of exp(f[P - 1] - f[j]) w[j] k[j]^T v[j]

(the chunked form of linear attention with decays, Yang et al. 2023, arXiv:2312.06635; Mamba-2's
state space duality, arXiv:2405.21060). Both are sums over the tokens of one page in order.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Argument, structure
from baton_worker.kernels.cpu.call_recorder import Kernel as CpuKernel

_AT_ONCE = 8
"""Pages that the plain form copies at a time: their states are large."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads, and the layout of their keys and values in a token's row, head after head. Consecutive
    heads share keys in groups of equal size."""

    heads: int
    groups: int
    key_dim: int
    value_dim: int
    key: int
    """The channel with which keys begin."""
    value: int


class Snapshots(NamedTuple):
    """Pages of a layer that stores the state before the first token of each page."""

    tokens: Tensor
    """[num_pages, page_size, *row of the mixer]: for these kernels [..., 1, 1, width]."""
    states: Tensor
    """float32 [num_pages, heads, key_dim, value_dim]"""


class Fading(NamedTuple):
    """Decays and weights of n pages, float32 [n, heads, page_size] each."""

    faded: Tensor
    """The logarithm of what is left of the page's state after each token."""
    weight: Tensor
    """Weight of each token."""


class Blocks(NamedTuple):
    """Assignment of queries to pages: blocks of consecutive tokens of a page."""

    pages: Tensor
    """int64 [N]"""
    begins: Tensor
    """int64 [N + 1]: of each block its first query; at the end how many there are."""
    firsts: Tensor
    """int64 [N]: which token of its page that is."""


class Chains(NamedTuple):
    """Pages of sequences in order, each with its queries. The first page of a sequence has its
    state; each other page gets it from its predecessor."""

    starts: Tensor
    """int64 [R]: of each sequence its first page."""
    stops: Tensor
    """int64 [R]: of each sequence the end of its pages. Between those of two there may be entries
    that belong to none."""
    pages: Tensor
    """int64 [N]"""
    firsts: Tensor
    """int64 [N]: the offset in its page of the first query, or the number of queries."""
    begins: Tensor
    """int64 [N + 1]: of each page its first query; at the end how many there are."""


@runtime_checkable
class Walker(Protocol):
    """Both sums over the pages of sequences, one after the other."""

    def walk(self, snapshots: Snapshots, query: Tensor, chains: Chains, fading: Fading) -> Tensor:
        """Write the states of pages, and evaluate queries [T, groups, key_dim], of float32 or the
        dtype of the pages, with the `fading` of each page: float32 [T, heads, value_dim]."""
        ...


class Kernel(Protocol):
    """Both sums over pages of one layer."""

    def carry(self, snapshots: Snapshots, before: Tensor, begun: Tensor, fading: Fading) -> None:
        """Write the states of pages int64 [n], each from its predecessor, whose decay is
        `fading`."""
        ...

    def read(self, snapshots: Snapshots, query: Tensor, blocks: Blocks, fading: Fading) -> Tensor:
        """Queries [T, groups, key_dim], with the `fading` of each block's page, to float32
        [T, heads, value_dim]."""
        ...


def choose(
    shape: Shape, dtype: torch.dtype, device: torch.device, *, exact: bool = False
) -> Kernel | Walker:
    """The kernel of the device, in C++ or in Triton, if available; else the torch twin. `exact`: on
    a GPU a token has the same bits decoded and in a prompt, as on a CPU."""
    if CpuStates.refuses(dtype, device) is None:
        return CpuStates(shape, dtype)
    if triton.runs(device):
        from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates  # Needs triton.

        return TritonStates(shape, exact=exact)
    return PlainStates(shape)


class PlainStates:
    """The torch twin, on any device. All products have one shape, so bits do not depend on other
    pages."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def carry(self, snapshots: Snapshots, before: Tensor, begun: Tensor, fading: Fading) -> None:
        """See `Kernel`."""
        for at in torch.split(torch.arange(len(before), device=before.device), _AT_ONCE):
            key, value = self._rows(snapshots, before[at])
            faded, weight = (part[at] for part in fading)
            last = faded[..., -1:]
            decay = _exp(last - faded) * weight
            added = (key * decay[..., None]).transpose(2, 3) @ value
            snapshots.states[begun[at]] = (
                snapshots.states[before[at]] * _exp(last)[..., None] + added
            )

    def read(self, snapshots: Snapshots, query: Tensor, blocks: Blocks, fading: Fading) -> Tensor:
        """See `Kernel`."""
        size, heads, query = snapshots.tokens.shape[1], self._shape.heads, query.float()
        number = torch.arange(len(blocks.pages), device=query.device)
        block = number.repeat_interleave(blocks.begins.diff())
        token = torch.arange(len(query), device=query.device)
        place = token - blocks.begins[block] + blocks.firsts[block]
        padded = query.new_zeros((len(number), size, *query.shape[1:]))
        padded[block, place] = query
        out = query.new_empty((len(number), size, heads, self._shape.value_dim))
        for at in torch.split(number, _AT_ONCE):
            part = Fading(*(every[at] for every in fading))
            out[at] = self._read(snapshots, padded[at], blocks.pages[at], part).transpose(1, 2)
        return out[block, place]

    def _read(self, snapshots: Snapshots, query: Tensor, pages: Tensor, fading: Fading) -> Tensor:
        """[n, page_size, groups, key_dim] to [n, heads, page_size, value_dim]."""
        key, value = self._rows(snapshots, pages)
        query = self._per_head(query)
        size = query.shape[2]
        later = torch.ones(size, size, dtype=torch.bool, device=query.device).triu(1)
        distance = fading.faded[..., None] - fading.faded[:, :, None]
        decay = _exp(distance.masked_fill(later, float("-inf"))) * fading.weight[:, :, None]
        carried = (query @ snapshots.states[pages]) * _exp(fading.faded)[..., None]
        return (query @ key.transpose(2, 3)) * decay @ value + carried

    def _rows(self, snapshots: Snapshots, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of whole pages int64 [n], float32 [n, heads, page_size, dim] each.
        Unwritten rows are finite and have weight 0."""
        shape = self._shape
        rows = snapshots.tokens[pages].flatten(2).float()
        key = rows[..., shape.key :][..., : shape.groups * shape.key_dim]
        value = rows[..., shape.value :][..., : shape.heads * shape.value_dim]
        per_head = self._per_head(torch.unflatten(key, 2, (shape.groups, -1)))
        return per_head, torch.unflatten(value, 2, (shape.heads, -1)).transpose(1, 2).contiguous()

    def _per_head(self, rows: Tensor) -> Tensor:
        """[n, page_size, groups, dim] to [n, heads, page_size, dim]."""
        shape = self._shape
        return rows.transpose(1, 2).repeat_interleave(shape.heads // shape.groups, dim=1)


def _exp(x: Tensor) -> Tensor:
    """exp in float64: torch's vectorised and scalar exponentials differ in the last bit, which
    rounding removes."""
    return x.double().exp().float()


class CpuWalk:
    """A C++ kernel over chains: a function of a library whose arguments are a structure, the number
    of sequences, the columns of the chains, and `others`."""

    def __init__(self, name: str, function: str, others: int) -> None:
        kernels = library(name)
        assert kernels is not None, "refuses() was not asked"
        self._run = CpuKernel(
            kernels[f"baton_{function}"], 2 + len(Chains._fields) + others, rows=1
        )

    def __call__(self, how: int, chains: Chains, *others: Argument) -> None:
        """Process every sequence; `how` is the address of the structure."""
        columns = (column.contiguous() for column in chains)
        self._run(how, len(chains.starts), *columns, *others)


def refuses(name: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the C++ kernels of that name do not support such pages, as half a sentence."""
    if device.type != "cpu":
        return "they are not on the CPU"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"the CPU kernels have no {dtype}"
    return "the CPU kernels could not be built" if library(name) is None else None


_NUMBERS = (
    *("page", "token", "state", "key", "value"),
    *("heads", "groups", "key_dim", "value_dim", "page_size", "bytes"),
    *("query_stride", "query_bytes"),
)


class _States(ctypes.Structure):
    """`baton::States` of states.cpp."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class CpuStates:
    """C++ kernel: processes every sequence once, head by head. Pages are read in place, and only up
    to each token."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        self._walk = CpuWalk("states", "states", 4)

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the kernel does not support such pages, as half a sentence; None if it does."""
        return refuses("states", dtype, device)

    def walk(self, snapshots: Snapshots, query: Tensor, chains: Chains, fading: Fading) -> Tensor:
        """See `Walker`; queries have any row stride."""
        tokens, states, shape = snapshots.tokens, snapshots.states, self._shape
        assert tokens.dtype is self._dtype and tokens.stride(-1) == 1
        assert states[0].is_contiguous() and states.dtype is torch.float32
        assert query.shape[1:] == (shape.groups, shape.key_dim)
        expected = (len(chains.pages), shape.heads, tokens.shape[1])
        assert all(part.shape == expected and part.dtype is torch.float32 for part in fading)
        query = with_whole_rows(query)
        out = torch.empty((len(query), shape.heads, shape.value_dim), dtype=torch.float32)
        how = structure(
            _States,
            *(tokens.data_ptr(), states.data_ptr()),
            *(tokens.stride(0), tokens.stride(1), states.stride(0), shape.key, shape.value),
            *(shape.heads, shape.groups, shape.key_dim, shape.value_dim),
            *(tokens.shape[1], self._dtype.itemsize, query.stride(0), query.dtype.itemsize),
        )
        self._walk(how, chains, query, *(part.contiguous() for part in fading), out)
        return out


class _Fading(ctypes.Structure):
    """`baton::Fading` of states.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "log_rates", "bias")),
        *(
            (name, ctypes.c_int64)
            for name in ("page", "token", "at", "heads", "page_size", "bytes")
        ),
        *((name, ctypes.c_float) for name in ("least", "most")),
    )


class CpuFading:
    """C++ kernel: the fading of the tokens of each entry of chains whose rows keep a time step dt
    per head: weights are softplus(dt + bias) between two limits, and decays the sums of these times
    -exp(log_rates). What tokens that are not there have is arbitrary."""

    def __init__(self) -> None:
        self._walk = CpuWalk("states", "fading", 2)

    def __call__(
        self,
        tokens: Tensor,
        chains: Chains,
        log_rates: Tensor,
        bias: Tensor,
        limits: tuple[float, float],
    ) -> Fading:
        """Time steps are the last channels of `Snapshots.tokens`; parameters float32 [heads]."""
        heads = len(bias)
        assert log_rates.dtype is bias.dtype is torch.float32 and tokens.stride(-1) == 1
        how = structure(
            _Fading,
            *(part.data_ptr() for part in (tokens, log_rates, bias)),
            *(tokens.stride(0), tokens.stride(1), tokens.shape[-1] - heads, heads),
            *(tokens.shape[1], tokens.dtype.itemsize, *limits),
        )
        size = (len(chains.pages), heads, tokens.shape[1])
        fading = Fading(*(torch.empty(size, dtype=torch.float32) for _ in Fading._fields))
        self._walk(how, chains, *fading)
        return fading


class CpuSkip:
    """C++ kernel: adds each head's inputs, times a scale of the head, to its outputs."""

    def __init__(self) -> None:
        kernels = library("states")
        assert kernels is not None, "refuses() was not asked"
        self._run = CpuKernel(kernels.baton_add_scaled, 8, tokens=6)

    def __call__(self, x: Tensor, scales: Tensor, y: Tensor) -> None:
        """Add x [T, heads * dim], any row stride, times float32 [heads] to float32
        [T, heads, dim]."""
        (count, heads, dim), step = y.shape, x.stride(0)
        assert x.shape == (count, heads * dim) and x.stride(1) == 1 and y.is_contiguous()
        assert scales.dtype is y.dtype is torch.float32 and scales.shape == (heads,)
        self._run(x, x.dtype.itemsize, step, scales, heads, dim, count, y)


def with_whole_rows(x: Tensor) -> Tensor:
    """The same [T, ...], each of whose rows is contiguous."""
    return x if x[:1].is_contiguous() else x.contiguous()
