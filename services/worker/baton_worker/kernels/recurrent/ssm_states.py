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
from dataclasses import astuple, dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library

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
        """Write the states of pages, and evaluate queries float32 [T, groups, key_dim] with the
        `fading` of each page: float32 [T, heads, value_dim]."""
        ...


class Kernel(Protocol):
    """Both sums over pages of one layer."""

    def carry(self, snapshots: Snapshots, before: Tensor, begun: Tensor, fading: Fading) -> None:
        """Write the states of pages int64 [n], each from its predecessor, whose decay is
        `fading`."""
        ...

    def read(self, snapshots: Snapshots, query: Tensor, blocks: Blocks, fading: Fading) -> Tensor:
        """Queries float32 [T, groups, key_dim], with the `fading` of each block's page, to float32
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
        size, heads = snapshots.tokens.shape[1], self._shape.heads
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


class _Chains(ctypes.Structure):
    """`baton::Chains` of chains.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in Chains._fields)


class CpuWalk:
    """A C++ kernel over chains: function `baton_<name>` of the library `<name>`."""

    def __init__(self, name: str) -> None:
        kernels = library(name)
        assert kernels is not None, "refuses() was not asked"
        self._walk = kernels[f"baton_{name}"]
        self._walk.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._walk.restype = None

    def __call__(self, how: ctypes.Structure, chains: Chains) -> None:
        """Process every sequence; `how` are the arguments documented in the kernel's source."""
        columns = [column.contiguous() for column in chains]
        pointers = _Chains(*(column.data_ptr() for column in columns))
        self._walk(ctypes.addressof(how), ctypes.addressof(pointers), len(chains.starts))


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
)


class _States(ctypes.Structure):
    """`baton::States` of states.cpp."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


class CpuStates:
    """C++ kernel: pages are read in place, and only up to each token."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        kernels = library("states")
        assert kernels is not None, "refuses() was not asked"
        self._carry, self._read = kernels.baton_carry, kernels.baton_read
        for function, count in ((self._carry, 6), (self._read, 9)):
            function.argtypes = (ctypes.c_void_p, ctypes.c_int64) + (ctypes.c_void_p,) * (count - 2)
            function.restype = None

    @classmethod
    def refuses(cls, dtype: torch.dtype, device: torch.device) -> str | None:
        """Why the kernel does not support such pages, as half a sentence; None if it does."""
        return refuses("states", dtype, device)

    def carry(self, snapshots: Snapshots, before: Tensor, begun: Tensor, fading: Fading) -> None:
        """See `Kernel`."""
        inputs = (
            before.contiguous(),
            begun.contiguous(),
            *self._fading(snapshots, len(before), fading),
        )
        self._carry(self._of(snapshots), len(before), *(tensor.data_ptr() for tensor in inputs))

    def read(self, snapshots: Snapshots, query: Tensor, blocks: Blocks, fading: Fading) -> Tensor:
        """See `Kernel`."""
        shape, count = self._shape, len(blocks.pages)
        out = query.new_empty((len(query), shape.heads, shape.value_dim))
        assert query.dtype is torch.float32 and query.shape[1:] == (shape.groups, shape.key_dim)
        inputs = (*(part.contiguous() for part in blocks), query.contiguous())
        inputs += (*self._fading(snapshots, count, fading), out)
        self._read(self._of(snapshots), count, *(tensor.data_ptr() for tensor in inputs))
        return out

    def _fading(self, snapshots: Snapshots, count: int, fading: Fading) -> tuple[Tensor, ...]:
        expected = (count, self._shape.heads, snapshots.tokens.shape[1])
        assert all(part.shape == expected and part.dtype is torch.float32 for part in fading)
        return tuple(part.contiguous() for part in fading)

    def _of(self, snapshots: Snapshots) -> int:
        """Address of the struct that describes the memory; valid until the next call."""
        tokens, states, shape = snapshots.tokens, snapshots.states, self._shape
        assert tokens.dtype is self._dtype and tokens.stride(-1) == 1
        assert states[0].is_contiguous() and states.dtype is torch.float32
        heads, groups, key_dim, value_dim, key, value = astuple(shape)
        self._how = _States(
            *(tokens.data_ptr(), states.data_ptr()),
            *(tokens.stride(0), tokens.stride(1), states.stride(0), key, value),
            *(heads, groups, key_dim, value_dim, tokens.shape[1], self._dtype.itemsize),
        )
        return ctypes.addressof(self._how)
