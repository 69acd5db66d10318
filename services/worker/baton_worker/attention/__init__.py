"""Attention backends in order of preference; each layer takes the first that does not refuse."""

from __future__ import annotations

import functools
import logging

from baton.errors import ModelError
from baton.logs import logger
from baton.registry import Registry
from baton_worker.attention.aliases import NAMES
from baton_worker.attention.base import AttentionBatch, AttentionSpec, Backend
from baton_worker.attention.call_stats import CallStats, CountedBackend

BACKENDS = Registry(
    "attention",
    {
        "cpu": "baton_worker.attention.cpu:CpuBackend",
        "triton": "baton_worker.attention.triton:TritonBackend",
        "flash_attn_3": "baton_worker.attention.flash_attn_3:FlashAttn3Backend",
        "flash_attn": "baton_worker.attention.flash_attn:FlashAttnBackend",
        "flashinfer": "baton_worker.attention.flashinfer:FlashInferBackend",
        "flashinfer_mla": "baton_worker.attention.flashinfer_mla:FlashInferMlaBackend",
        "grouped": "baton_worker.attention.grouped:GroupedBackend",
        "reference": "baton_worker.attention.reference:ReferenceBackend",
        "flex": "baton_worker.attention.flex:FlexBackend",
    },
)

_PLAIN = ("grouped", "reference", "flex")
"""Those in plain torch."""

log = logger(__name__)
_wanted: tuple[str, ...] = ()
"""Backends that may be chosen; none means all."""
_counts: CallStats | None = None
"""Where backends count what they are asked to do, if they do."""


def prefer(name: str) -> None:
    """Layers that are built from now on have this backend or none; with "auto" they choose.

    Raises:
        SettingsError: there is no such backend; of names that others have, what to do instead.
    """
    global _wanted
    known = NAMES.ours(name)
    _wanted = () if known == "auto" else (BACKENDS.check(known),)
    choose.cache_clear()


def count(counts: CallStats | None) -> None:
    """Backends that are chosen from now on count here what they are asked to do; None: they do
    not."""
    global _counts
    _counts = counts
    choose.cache_clear()


@functools.cache
def choose(call: AttentionSpec) -> Backend:
    """The first backend that accepts this kind of layer, of those that `prefer` has left; what the
    others said is logged.

    Raises:
        ModelError: every backend refuses; the message holds every reason.
    """
    reasons = list[str]()
    for name in _wanted or BACKENDS.names():
        backend: Backend = BACKENDS.load(name)()
        reason = _unread(backend, call) or backend.refuses(call)
        if reason is None:
            level = logging.DEBUG if call.device.type == "meta" else logging.INFO
            log.log(level, "attention: %s (%s)%s", name, call, "".join(f"; {r}" for r in reasons))
            return backend if _counts is None else CountedBackend(backend, name in _PLAIN, _counts)
        reasons.append(f"{name} refused: {reason}")
    raise ModelError(f"No attention backend serves {call}: {'; '.join(reasons)}.")


def _unread(backend: Backend, call: AttentionSpec) -> str | None:
    if call.layout in backend.layouts:
        return None
    return f"it reads {' and '.join(sorted(backend.layouts))} pages, not {call.layout}"


__all__ = ["BACKENDS", "AttentionBatch", "AttentionSpec", "Backend", "choose", "count", "prefer"]
