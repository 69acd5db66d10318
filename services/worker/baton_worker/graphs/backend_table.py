"""The fastest of the attention backends that serve a kind of layer: measured once per machine and
kind, and stored in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from baton.logs import logger
from baton_worker.attention import AttentionSpec, Backend
from baton_worker.graphs.backend_times import CASES, step_seconds
from baton_worker.graphs.capture import CudaRecorder, Recorder, Uncaptured
from baton_worker.platform.device_clock import Clock, CudaClock
from baton_worker.platform.measured_table import MeasuredTable, Times

_PACKAGES = ("torch", "triton", "flashinfer-python", "flash-attn", "flash-attn-3")

log = logger(__name__)


class BackendTable:
    """Measured times of one card, with these packages and this page size.

    Args:
        folder: where the table is kept.
        card: name of the device.
        page_size: tokens per page.
        recorder: captures steps; None: CUDA graphs.
        clock: measures; None: CUDA's.
    """

    def __init__(
        self,
        folder: Path,
        card: str,
        page_size: int,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._card, self._page_size = card, page_size
        self._recorder, self._clock = recorder, clock or CudaClock()
        self._table = MeasuredTable(folder, "attention", card, (str(page_size),), _PACKAGES)

    def fastest(self, call: AttentionSpec, backends: Mapping[str, Backend]) -> str:
        """Name of the backend whose times are the least: the product of its cases, each against
        the best. Ranks of a model take what the first of them has measured."""
        if len(backends) == 1 or not _plain(call):
            return next(iter(backends))
        kind = str(replace(call, device=torch.device("meta")))
        times = self._table.times(
            kind,
            backends.keys(),
            lambda: {name: self._times(each, call) for name, each in backends.items()},
        )
        _report(self._card, call, times)
        return min(backends, key=lambda name: _score(times, name))

    def _times(self, backend: Backend, call: AttentionSpec) -> dict[str, float]:
        """Seconds by case; infinite where the backend fails."""
        recorder = self._recorder or CudaRecorder(call.device)
        setup = (backend, call, self._page_size)
        try:
            return {
                name: step_seconds(*setup, case, recorder, self._clock)
                for name, case in CASES.items()
            }
        except (RuntimeError, Uncaptured) as error:  # Of its package, or of a compiler.
            log.warning("%s fails on %s: %s", type(backend).__name__, self._card, error)
            return dict.fromkeys(CASES, math.inf)


def _plain(call: AttentionSpec) -> bool:
    """Whether pages hold keys and values, or latents, and nothing else."""
    has_planes = call.value_dim is None or call.latent
    special = (call.codes, call.most_keys, call.context, call.partial or None, call.tree or None)
    return has_planes and not any(special) and not (call.sinks or call.token_sinks or call.spans)


def _score(times: Times, name: str) -> float:
    least = {case: min(row[case] for row in times.values()) for case in CASES}
    return math.prod(times[name][case] / least[case] for case in CASES)


def _report(card: str, call: AttentionSpec, times: Times) -> None:
    for case in CASES:
        each = ", ".join(f"{name} {row[case] * 1e3:.2f} ms" for name, row in times.items())
        log.info("attention of %s on %s, %s: %s", call, card, case, each)
