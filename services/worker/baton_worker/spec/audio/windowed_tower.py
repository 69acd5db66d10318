"""The encoder of sounds that goes through their spectrogram in windows, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.audio.tower import FrameConvolution
from baton_worker.spec.encoder import Encoder
from baton_worker.spec.vision import Step


@dataclass(frozen=True, slots=True)
class SpectrogramStem:
    """Three convolutions of 3 x 3 over frames and bins, each of which halves both, rounded up, and
    a projection of all bins of a state without a bias. Names are the checkpoint's."""

    names: tuple[str, str, str]
    out_name: str
    bins: int
    channels: int
    hidden: int

    @property
    def out_bins(self) -> int:
        """Bins behind the convolutions."""
        return -(-self.bins // 8)

    def after(self, num_frames: int) -> int:
        """Number of states of so many frames."""
        return -(-num_frames // 8)


@dataclass(frozen=True, slots=True)
class FrameStem:
    """Convolutions over time, to which nothing is behind the last frame of a sound."""

    steps: tuple[FrameConvolution, ...]

    @property
    def bins(self) -> int:
        """Channels of a frame."""
        return self.steps[0].inputs

    def after(self, num_frames: int) -> int:
        """Number of states of so many frames."""
        for step in self.steps:
            num_frames = step.after(num_frames)
        return num_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchStem:
    """Each `size` frames, all bins normed by statistics of training, become a state by one
    projection, with a learned vector for its place in its window (Dasheng, arXiv:2406.06992).

    A sound that fills n hops has n + 1 frames, so its last state may have a hop that it does not
    fill: the others do not see that state. Names are under `prefix`, the checkpoint's.
    """

    prefix: str
    bins: int
    size: int
    hidden: int
    positions: int
    """States of a window."""

    def after(self, num_hops: int) -> int:
        """Number of states of so many hops."""
        return (num_hops + 1) // self.size

    def frames(self, num_hops: int) -> int:
        """Number of frames that they are made of."""
        return self.size * self.after(num_hops)

    def unseen(self, num_hops: int) -> int:
        """Number of them that are not seen."""
        return self.after(num_hops) - num_hops // self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedTower:
    """Windows of `window_frames` frames go through `stem` one by one and get the positions of
    sines, from 0 in each, or without `sines` only those of ropes. The states of `together` windows
    see one another in the layers of `stack`. The steps of `projector` make embeddings in the place
    of the tokens `audio_token` (Qwen2.5-Omni, arXiv:2503.20215; Qwen3-Omni, arXiv:2509.17765).

    With `padded`, the frames behind the end of a sound are seen like the others, and what the
    projector makes of them is left out (GLM-ASR)."""

    stem: FrameStem | SpectrogramStem | PatchStem
    stack: Encoder
    projector: tuple[Step, ...]
    audio_token: int
    hidden: int
    """Channels of an embedding."""
    window_frames: int
    together: int = 1
    sines: bool = True
    padded: bool = False
    droppable: bool = False
    """Whether the last embedding of a sound may be left out, by the third number of its grid."""
    alongside: bool = False
    """See `MediaTower.alongside`."""
