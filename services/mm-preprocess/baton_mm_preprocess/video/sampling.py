"""Frame sampling, by the rule of each family in transformers.

A rule takes the number of frames of a file and their rate per second, and returns ascending
indices. If transformers raises because a clip is too short, every frame is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np


class Sampling(msgspec.Struct, frozen=True):
    """Settings of a rule; `num_frames` takes precedence over `fps`."""

    rule: str
    """Rule, a key of `RULES`."""
    num_frames: int = 0
    """Frames of every clip; 0 for the number that results from `fps`, or all."""
    fps: float = 0.0
    """Frames per second of the clip; 0 if `num_frames` is given, or for all frames."""
    min_frames: int = 4
    max_frames: int = 768
    group: int = 1
    """Frames that form one along the time axis."""
    max_seconds: float = 300.0
    """Maximum duration at which GLM-4.1V keeps its rate."""

    def __call__(self, total: int, fps: float) -> list[int]:
        """Indices of the frames of a clip of `total` frames at `fps` frames per second."""
        return RULES[self.rule](self, total, fps)

    def count(self, total: int, fps: float) -> float:
        """Requested number of frames, before any limit."""
        return self.num_frames or (total / fps * self.fps if self.fps else total)


Rule = Callable[[Sampling, int, float], list[int]]


def uniform(sampling: Sampling, total: int, fps: float) -> list[int]:
    """The first frame of each of several equal parts (LLaVA-OneVision, LLaVA-NeXT-Video)."""
    count = min(total, max(1, int(sampling.count(total, fps))))
    return [part * total // count for part in range(count)]


def centered(sampling: Sampling, total: int, fps: float) -> list[int]:
    """The middle of each part (InternVL)."""
    count = min(total, max(1, int(sampling.count(total, fps))))
    return _stepped(total / count / 2, total, count)


def grouped(sampling: Sampling, total: int, fps: float) -> list[int]:
    """Complete groups of frames, from the first of each part (Qwen2-VL, arXiv:2409.12191)."""
    group = sampling.group
    if sampling.num_frames:
        count = round(sampling.num_frames / group) * group
    else:
        most = min(sampling.max_frames, total) // group * group
        wanted = min(max(sampling.count(total, fps), sampling.min_frames), most)
        count = math.floor(wanted / group) * group
    return _stepped(0.0, total, min(max(count, 1), total))


def spread(sampling: Sampling, total: int, fps: float) -> list[int]:
    """From the first frame to the last (Qwen3-VL, arXiv:2511.21631)."""
    count = int(sampling.count(total, fps))
    if not sampling.num_frames:
        count = min(max(count, sampling.min_frames), sampling.max_frames)
    count = min(max(count, 1), total)
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


def rounded(sampling: Sampling, total: int, fps: float) -> list[int]:
    """As `spread`, with the closest number of frames (Kimi K2.5, arXiv:2602.02276)."""
    count = min(max(round(sampling.count(total, fps)), 1), total)
    return [int(index) for index in np.linspace(0, total - 1, count).round()]


def seconds(sampling: Sampling, total: int, fps: float) -> list[int]:
    """A frame every 1 / `fps` seconds, in even number (GLM-4.1V, arXiv:2507.01006)."""
    rate, duration, last = sampling.fps, total / fps, total - 1
    if sampling.num_frames:
        rate = sampling.num_frames / duration
    if duration <= sampling.max_seconds:
        count = max(math.floor(duration * rate), 1)
        indices = [min(last, math.ceil(step * fps / rate)) for step in range(count)]
    else:
        count = int(sampling.max_seconds * rate)
        times = np.linspace(0, duration, count).tolist()
        indices = [min(last, math.ceil(time * fps)) for time in times]
        indices = list(range(total)) if count >= total else indices
    indices = list(dict.fromkeys(indices))
    return indices + indices[-1:] * (len(indices) % 2)


def inner(sampling: Sampling, total: int, fps: float) -> list[int]:
    """At most `max_frames`; without the first and last second of a long clip (SmolVLM,
    arXiv:2504.05299)."""
    most, duration = sampling.num_frames or sampling.max_frames, total / fps
    count = max(1, min(round(sampling.fps * duration), most))
    first, last = 0, total - 1
    if duration - 2 > most * sampling.fps:
        first, last = int(fps), min(int(total - fps), last)
    if first >= last:
        first, last = 0, total - 1
    return sorted({int(index) for index in np.linspace(first, last, count)})


def _stepped(start: float, total: int, count: int) -> list[int]:
    """`count` indices from `start` on, in equal steps, rounded in float32 as in torch."""
    step = total / count
    return [min(int(np.float32(start + part * step)), total - 1) for part in range(count)]


RULES: dict[str, Rule] = {
    "uniform": uniform,
    "centered": centered,
    "grouped": grouped,
    "spread": spread,
    "rounded": rounded,
    "seconds": seconds,
    "inner": inner,
}
