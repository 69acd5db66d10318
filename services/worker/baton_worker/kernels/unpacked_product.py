"""Products of many rows with a packed weight that is dequantised first, and the number of rows from
which they are faster.

What a weight of 4 bits costs an H100 (132 multiprocessors at 1.76 GHz, 989e12 operations and
3.35e12 bytes a second), for T rows, each at best:

    product of floats        2.0 fs * T
    unpacked by each tile    1.1 fs * T, for 128 rows and 4 instructions per code, of which some are
                             hidden behind the product and none makes it faster
    unpacked once            0.3 ps, if the floats stay in the L2 cache: 60 % of the product of 256
                             rows, 7 % of 2,048 rows and 2 % of 8,192

So packed weights are no faster than floats for prompts, and cost little more where a weight is
unpacked once for many rows. The number of rows from which it pays is measured once per shape of
weights, at first use.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from baton.logs import logger
from baton_worker.kernels.packed_weights import PackedWeights
from baton_worker.platform.device_clock import Clock, CudaClock
from baton_worker.platform.measured_table import MeasuredTable, Times

ROWS = (256, 512, 1024, 2048)
"""Rows that are measured."""
UNMEASURED = 1024
"""Rows from which on a weight is unpacked where nothing is measured."""
NEVER = sys.maxsize
_SCRATCH_SHARE = 3
"""Floats take a third of the L2 cache, beside inputs and results."""
_TILE = 128
"""Rows and columns of a tile of a library's product."""
_TIMES = 5
_PACKED, _UNPACKED = "packed", "unpacked"
log = logger(__name__)
_table: MeasuredTable | None = None
_clock: Clock = CudaClock()


def use(table: MeasuredTable, clock: Clock | None = None) -> None:
    """Measure from now on, and keep the times in a table."""
    global _table, _clock
    _table, _clock = table, clock or CudaClock()


def rows_from(weights: PackedWeights, like: Tensor) -> int:
    """The number of rows from which `product` is faster than the kernel that reads codes, for
    inputs of the dtype of `like`."""
    if _table is None:
        return UNMEASURED
    _, columns, depth = weights.shape
    form = f"{weights.values} of {weights.bits} bits in {weights.scale_type} groups"
    kind = f"{form} of {weights.group}, {depth} to {columns}, {like.dtype}"
    try:
        times = _table.times(kind, (_PACKED, _UNPACKED), partial(_times, weights, like.dtype))
    except torch.OutOfMemoryError:
        log.warning("%s on %s: there is no memory to measure it", kind, _table.card)
        return UNMEASURED
    first = _first(times)
    where = f"from {first} rows on" if first < NEVER else "for no number of rows"
    log.info("%s on %s: unpacked once %s", kind, _table.card, where)
    return first


def product(x: Tensor, weights: PackedWeights) -> Tensor:
    """x [T, K], its channels in packed order, times the one weight: [T, N]."""
    from baton_worker.kernels.triton import grouped  # Needs triton, which may not be installed.

    _, columns, depth = weights.shape
    out, step = x.new_empty(len(x), columns), _columns(len(x), depth, x)
    scratch = x.new_empty(depth * min(step, columns))
    for first in range(0, columns, step):
        some = min(step, columns - first)
        floats = grouped.dequantise(weights, scratch[: depth * some].view(depth, some), first)
        torch.mm(x, floats, out=out[:, first : first + some])
    return out


def _columns(rows: int, depth: int, x: Tensor) -> int:
    """Columns that are unpacked at once: what the cache holds, but as many as make a product that
    fills the device."""
    processors, cache = _device(x.device)
    fitting = cache // _SCRATCH_SHARE // (depth * x.element_size())
    filling = -(-processors * _TILE * _TILE // max(1, rows))
    return -(-max(fitting, filling) // _TILE) * _TILE


@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and bytes of the L2 cache."""
    if device.type != "cuda":
        return 1, 1 << 20
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count), int(properties.L2_cache_size)


def _times(weights: PackedWeights, dtype: torch.dtype) -> Times:
    from baton_worker.kernels.triton import grouped

    ways: dict[str, Callable[[Tensor, PackedWeights], Tensor]] = {
        _PACKED: grouped.product,
        _UNPACKED: product,
    }
    times: Times = {name: {} for name in ways}
    for rows in ROWS:
        x = torch.randn(rows, weights.depth, dtype=dtype, device=weights.words.device)
        for name, way in ways.items():
            times[name][str(rows)] = _clock.seconds(partial(way, x, weights), _TIMES)
    return times


def _first(times: Times) -> int:
    """The fewest rows from which on all products are faster unpacked."""
    first = NEVER
    for rows in reversed(ROWS):
        if times[_UNPACKED][str(rows)] >= times[_PACKED][str(rows)]:
            break
        first = rows
    return first
