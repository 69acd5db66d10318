"""Policy: the steps to capture, or the reason to capture none."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch

from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.kernels.cpu.call_recorder import CallRecording
from baton_worker.models.decoder import Model

_EVERY, _FAR, _EVERY_FAR = 8, 256, 32
"""Distances of sizes up to `_FAR` rows, and beyond."""
_MIXED = (16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of captured steps with prompt chunks. A device computes larger ones for longer than the
host needs to launch their kernels."""
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of captured steps: numbers of decode rows, ascending; the maximum sequence length; the
    maximum tokens and rows of a step of any shape."""

    rows: tuple[int, ...]
    length: int
    """Most tokens of a row, the new ones included: attention is captured for as many."""
    tokens: int = 0
    """Most new tokens of a step in which rows have any number of them, replayed in part; 0: none is
    captured so."""
    mixed: tuple[int, ...] = ()
    """Numbers of new tokens of steps in which rows have any number of them, ascending; steps are
    padded to the next."""

    @classmethod
    def up_to(cls, rows: int, length: int, tokens: int = 0) -> Sizes:
        """1, 2, 4, then every 8 up to 256 and every 32 beyond, and `rows` itself; steps of any
        shape of up to so many tokens in `_MIXED` sizes."""
        near = range(_EVERY, min(rows, _FAR) + 1, _EVERY)
        far = range(_FAR + _EVERY_FAR, rows + 1, _EVERY_FAR)
        steps = {n for n in (1, 2, 4, *near, *far) if n <= rows}
        mixed = tuple(size for size in _MIXED if size <= min(tokens, length))
        return cls(tuple(sorted(steps | {rows})), length, mixed=mixed)

    @property
    def number(self) -> int:
        """Number of captured steps."""
        return len(self.rows) + len(self.mixed)

    @property
    def outermost(self) -> Sizes:
        """The smallest and the largest alone."""
        ends = ((*sizes[:1], *sizes[-1:]) for sizes in (self.rows, self.mixed))
        rows, mixed = (tuple(sorted(set(of))) for of in ends)
        return Sizes(rows, self.length, mixed=mixed)

    def fitting(self, rows: int, longest: int) -> int | None:
        """The smallest size for this many rows of at most this length; None if none fits."""
        at = bisect_left(self.rows, rows)
        return self.rows[at] if at < len(self.rows) and longest <= self.length else None

    def __str__(self) -> str:
        """One phrase for a log line."""
        first = ", ".join(str(rows) for rows in self.rows[:_SHOWN])
        rows = f"{first} to {self.rows[-1]}" if len(self.rows) > _SHOWN else first
        beside = f", and of up to {self.mixed[-1]} tokens in any rows" if self.mixed else ""
        return f"graphs of {rows} rows of at most {self.length} tokens{beside}"


def refuses(config: Config, device: torch.device, loaded: LoadedModel, ranks: int) -> str | None:
    """Why decode steps run eagerly, as half a sentence; None if they are captured."""
    if reason := _refused(config, device):
        return reason
    if config.pipeline_parallel_size > 1:
        return "the states of a step pass through several stages"
    if ranks > 1 and device.type != "cuda":
        return f"a tape holds no communication, and the model has {ranks} ranks"
    if config.data_parallel_size > 1:
        return "the workers of its group agree on every step, on the host"
    if config.expert_stats_window:
        return "--expert-stats-window counts the visits of every step, and a replay shows none"
    if config.runtime_stats:
        return "--runtime-stats times layer by layer, and a replay has none"
    if not loaded.generates:
        return "the model has none"
    if not isinstance(loaded.model, Model):
        return "transformers' own code runs this model"
    return loaded.model.capture_blocker


def _refused(config: Config, device: torch.device) -> str | None:
    """Why nothing is captured on such a device; None if it can be."""
    if device.type == "cuda":
        return None if config.cuda_graphs else "--no-cuda-graphs"
    return CallRecording.refuses() if config.max_replay_rows else "--max-replay-rows 0"
