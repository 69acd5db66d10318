"""The encoder of the sounds in a decoder's prompt, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.encoder import Encoder
from baton_worker.spec.vision import Step


@dataclass(frozen=True, slots=True)
class FrameConvolution:
    """A convolution over time with windows of `size` frames (an odd number) around every
    `stride`-th frame, zeros beyond both ends, a bias, and the activation `activation` of
    `layers.mlp.ACTIVATIONS`. `name` is the checkpoint's. With `causal`, a window ends with the last
    of `stride` frames, whole groups of which are counted."""

    name: str
    inputs: int
    outputs: int
    stride: int = 1
    size: int = 3
    activation: str = "gelu"
    causal: bool = False

    def after(self, num_frames: int) -> int:
        """Number of states that so many frames become."""
        return num_frames // self.stride if self.causal else (num_frames - 1) // self.stride + 1

    def before(self, num_states: int) -> int:
        """Number of frames that the first states are made of."""
        return (num_states - 1) * self.stride + self.size // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioStack(Encoder):
    """A stack over the frames of a spectrogram (Whisper, Radford et al. 2022, arXiv:2212.04356):
    the convolutions of `stem`, learned positions, layers in which all states of a chunk see one
    another."""

    stem: tuple[FrameConvolution, ...]
    num_positions: int
    """Rows of the table of positions, which are the most states of a chunk."""

    def after(self, num_frames: int) -> int:
        """Number of states of a chunk with so many frames."""
        for step in self.stem:
            num_frames = step.after(num_frames)
        return num_frames

    def before(self, num_states: int) -> int:
        """Number of frames that the first states of a chunk are made of."""
        for step in reversed(self.stem):
            num_states = step.before(num_states)
        return num_states


@dataclass(frozen=True, slots=True)
class ChunkRotation:
    """Pairs of the first 4 * `pairs` channels are rotated by the number of a chunk in its sound
    and by the place in its chunk, both times the seconds from the beginning of the sound (Music
    Flamingo, arXiv:2511.10289; rotary time embeddings, Goel et al. 2024, arXiv:2410.12109)."""

    pairs: int
    """Frequencies of each of the two."""
    base: float
    seconds: float
    """Between two states."""

    @property
    def most(self) -> int:
        """By which numbers and places are divided."""
        return int(self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTower:
    """A stack over the chunks of a sound and a projector to the hidden size of the decoder.

    The final states of each chunk go through the steps of `projector`, the `rotation` and the steps
    of `finish`, and replace the embeddings of the tokens `audio_token`.
    """

    stack: AudioStack
    projector: tuple[Step, ...]
    audio_token: int
    hidden: int
    """Channels of an embedding."""
    chunk_frames: int
    """Frames of a whole chunk."""
    previous_token: int | None = None
    """Another token that may stand for a sound: the start of a text before it."""
    cross: bool = False
    """Whether embeddings take the place of no token, see `MediaTower.cross`."""
    exact: bool = False
    """Whether a sound of one chunk comes with its own frames alone; else also with those behind it
    that are read for its last state."""
    rotation: ChunkRotation | None = None
    finish: tuple[Step, ...] = ()
