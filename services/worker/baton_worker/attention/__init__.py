"""Attention backends in order of preference; each layer takes the first that does not refuse."""

from __future__ import annotations

import functools
import logging

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.attention.base import AttentionBatch, AttentionCall, Backend

BACKENDS = Registry(
    "attention",
    {
        "cpu": "baton_worker.attention.cpu:CpuBackend",
        "grouped": "baton_worker.attention.grouped:GroupedBackend",
        "reference": "baton_worker.attention.reference:ReferenceBackend",
    },
)

_log = logging.getLogger(__name__)


@functools.cache
def choose(call: AttentionCall) -> Backend:
    """The first backend that accepts this kind of layer; what the others said is logged.

    Raises:
        ModelError: every backend refuses; the message holds every reason.
    """
    reasons = list[str]()
    for name in BACKENDS.names():
        backend: Backend = BACKENDS.load(name)()
        reason = backend.refuses(call)
        if reason is None:
            _log.info("attention: %s (%s)%s", name, call, "".join(f"; {r}" for r in reasons))
            return backend
        reasons.append(f"{name} refused: {reason}")
    raise ModelError(f"No attention backend serves {call}: {'; '.join(reasons)}.")


__all__ = ["BACKENDS", "AttentionBatch", "AttentionCall", "Backend", "choose"]
