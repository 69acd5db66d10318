"""GPTQ checkpoints, as written by AutoGPTQ and its successors."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from baton.errors import ModelError
from baton_worker.kernels.gptq import BITS, GptqWeight, unpack
from baton_worker.quantization import marlin
from baton_worker.quantization.collect import Format, Formats, Parts

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""Offset of stored zero points by `checkpoint_format`: the first format stores zero - 1."""
_ORDER, _MARLIN = "g_idx", "marlin"


def formats(settings: SimpleNamespace) -> Formats:
    """The format of a `quantization_config`: `bits`, `group_size`, `desc_act` and
    `checkpoint_format`.

    Raises:
        ModelError: the settings are not supported.
    """
    options = vars(settings)
    bits, written = options.get("bits"), options.get("checkpoint_format") or "gptq"
    if written == _MARLIN or options.get("is_marlin_format"):
        _check_alike(options)
        return marlin.formats(settings)
    if bits not in BITS:
        known = ", ".join(map(str, BITS))
        raise ModelError(f"GPTQ weights of {bits} bits cannot be read. Baton reads {known} bits.")
    if written not in _ZERO_OFFSETS:
        raise ModelError(
            f"GPTQ weights in the layout '{written}' cannot be read: it is that of one GPU kernel. "
            "Use a checkpoint whose checkpoint_format is 'gptq' or 'gptq_v2'."
        )
    _check_alike(options)
    read = partial(
        _read, bits=bits, group=options.get("group_size", -1), offset=_ZERO_OFFSETS[written]
    )
    stored = {"qweight", "qzeros", "scales"}
    if options.get("desc_act"):
        form = Format(frozenset({*stored, _ORDER}), read)
    else:
        form = Format(frozenset(stored), read, unread=frozenset({_ORDER}))
    return lambda module: form


def _check_alike(options: dict[str, Any]) -> None:
    """Check that modules are unquantised or share one bit width."""
    rules = vars(options.get("dynamic") or SimpleNamespace())
    others = vars(options.get("extra_config") or SimpleNamespace()).values()
    changed = any(not name.startswith("-:") for name in rules)
    if changed or any(vars(other).get("bits", 16) < 16 for other in others):
        raise ModelError(
            "GPTQ weights that are stored otherwise in some modules ('dynamic', 'extra_config') "
            "cannot be read. Use a checkpoint with the same bits in all modules."
        )
    if options.get("pack_dtype") not in (None, "int32"):
        raise ModelError("GPTQ weights can be read from 32-bit words only, see 'pack_dtype'.")


def _read(parts: Parts, *, bits: int, group: int, offset: int) -> GptqWeight:
    """qweight int32 [K * bits / 32, N], qzeros int32 [G, N * bits / 32], scales [G, N] and optional
    g_idx int32 [K]."""
    words, scales = parts["qweight"], parts["scales"]
    depth = len(words) * 32 // bits
    groups = parts.get(_ORDER)
    if groups is None:
        groups = torch.arange(depth, dtype=torch.int32) // (group if group > 0 else depth)
    zeros = unpack(parts["qzeros"].contiguous().view(torch.uint8), bits).to(torch.int16) + offset
    return GptqWeight(bits, words, scales, zeros, groups).checked()
