"""The encoder of the images in a decoder's prompt, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from baton.tile_splits import TileSplits
from baton_worker.spec.audio.frame_steps import FramePool, FrameStack, PadCode
from baton_worker.spec.encoder import Dense, Patches, Vision
from baton_worker.spec.ffn import Mlp
from baton_worker.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Merge:
    """`size` x `size` neighbouring patches become one vector.

    `how`: "concat" puts patch after patch; "channels" puts the values of one channel side by side,
    as a convolution or `unfold` does; "mean" averages.
    """

    size: int
    how: str = "concat"


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with disjoint windows of `size` x `size` patches."""

    name: str
    inputs: int
    outputs: int
    size: int


@dataclass(frozen=True, slots=True)
class Normed:
    """A norm of `width` channels; `name` is the checkpoint's."""

    norm: Norm
    width: int
    name: str


@dataclass(frozen=True, slots=True)
class Activated:
    """An activation of `layers.mlp.ACTIVATIONS`; with `gated` the second half of the channels goes
    through it and multiplies the first half."""

    activation: str
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Standardized:
    """(x * factor - bias) * scale in float32; `bias` and `scale` are vectors of `width` channels by
    the checkpoint's names, or with empty ones the factor is all (Gemma 4)."""

    factor: float
    width: int
    bias: str = ""
    scale: str = ""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The channels of each vector `times` times, as one frame that stands for so many."""

    times: int


@dataclass(frozen=True, slots=True)
class GatedDense:
    """down(activation(gate(x)) * up(x)) without biases; names are the checkpoint's."""

    width: int
    intermediate: int
    activation: str
    names: tuple[str, str, str]
    """Of gate, up and down."""


@dataclass(frozen=True, slots=True)
class Codebook:
    """The mean of `size` learned vectors under softmax(x), with none from `size - reserved` on
    (Ovis, arXiv:2405.20797)."""

    name: str
    size: int
    width: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Unfold:
    """As `Merge` of patches that lie row by row; zeros fill up the last row and the last column of
    windows (DeepSeek-VL2, arXiv:2412.10302)."""

    size: int
    how: str = "channels"
    """"channels" or "concat", as of `Merge`."""


@dataclass(frozen=True, slots=True)
class StridedConvolution:
    """A convolution with windows of `size` x `size` states that lie row by row, one every `stride`,
    with `padding` zeros around a part; `name` is the checkpoint's."""

    name: str
    inputs: int
    outputs: int
    size: int
    stride: int
    padding: int = 0


@dataclass(frozen=True, slots=True)
class RowEnds:
    """A learned vector of `width` channels after each row of a part; `name` is the checkpoint's."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class Bracket:
    """Learned vectors of `width` channels before and after the states of a part; names are the
    checkpoint's."""

    begin: str
    end: str
    width: int


@dataclass(frozen=True, slots=True)
class Resampler:
    """Each part of an image becomes `queries` vectors: learned queries attend to its states, whose
    keys have sines of their rows and columns (MiniCPM-V, arXiv:2408.01800). The states have
    `inputs` channels, the vectors `width`; `name` is the checkpoint's. With `stored` positions, a
    square grid of them, queries have them too, and keys have them resized (Qwen-VL,
    arXiv:2308.12966)."""

    name: str
    queries: int
    inputs: int
    width: int
    num_heads: int
    norm: Norm
    stored: bool = False


@dataclass(frozen=True, slots=True)
class QFormer:
    """Each part of an image becomes `queries` vectors of `width` channels: learned queries attend
    to one another, and in every `frequency`-th layer to the states of the part, with the
    `class_token` if it has one (BLIP-2, arXiv:2301.12597). The states have `inputs` channels;
    `name` and `queries_name` are the checkpoint's."""

    name: str
    queries_name: str
    queries: int
    inputs: int
    width: int
    num_heads: int
    num_layers: int
    frequency: int
    ffn: Mlp
    norm: Norm
    class_token: bool = True


@dataclass(frozen=True, slots=True)
class LearnedQueries:
    """Learned queries attend to the states of a part of an image (Aria, arXiv:2410.05993): the
    first n of `counts`, pairs (patches, n), which has room for a square of the part's longer side.
    Both have `width` channels; `name` is the checkpoint's."""

    name: str
    counts: tuple[tuple[int, int], ...]
    width: int
    num_heads: int
    norm: Norm


@dataclass(frozen=True, slots=True)
class Abstractor:
    """The states of a part of an image go through `depth` RegNet blocks, become fewer, and go
    through as many again (C-Abstractor; Honeybee, arXiv:2312.06742): means of `pooled` x `pooled`
    places, or with `pooled` 0 each `merge` x `merge` states side by side.

    The states have `inputs` channels, the vectors `width`; learned positions of a square of side
    `positions`, if that is not 0, are resized and added; `name` is the checkpoint's."""

    name: str
    inputs: int
    width: int
    depth: int
    positions: int
    pooled: int = 0
    merge: int = 1


@dataclass(frozen=True, slots=True)
class Summed:
    """The channels in as many equal parts as `parts`, each through `shared`, then through steps of
    its own; their sum (openPangu-VL)."""

    shared: tuple[Step, ...]
    parts: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class SummaryNeck:
    """States of `inputs` channels to vectors of `width`: one for each `columns` patches of a row
    that lie side by side, then one for the states `summaries` among the `leading` ones (Nemotron
    Parse). `name` is the checkpoint's."""

    name: str
    inputs: int
    width: int
    leading: int
    summaries: tuple[int, ...]
    columns: int = 4


Step: TypeAlias = (
    Merge
    | Convolution
    | Normed
    | Activated
    | Standardized
    | Repeated
    | Dense
    | GatedDense
    | Codebook
    | Unfold
    | StridedConvolution
    | Summed
    | RowEnds
    | Bracket
    | Resampler
    | QFormer
    | LearnedQueries
    | Abstractor
    | SummaryNeck
    | FrameStack
    | FramePool
    | PadCode
)
"""One step from the states of patches, or of frames of a sound, to embeddings."""


@dataclass(frozen=True, slots=True)
class Newlines:
    """The embeddings of tiles lie side by side as in the image, without padding and with a learned
    vector after each row; those of the whole image are first (LLaVA-NeXT).

    The image had one of the sizes `offered`, in tiles of `tile` pixels and `patches` x `patches`
    embeddings. More than `most_tiles` of these are interpolated to fewer; 0 is no limit. The
    frames of a video are interpolated to half of that a side, with one vector after the last
    (LLaVA-OneVision, arXiv:2408.03326).
    """

    name: str
    tile: int
    patches: int
    offered: tuple[tuple[int, int], ...]
    most_tiles: int = 0
    rounded: bool = True
    """As of `baton.anyres.unpadded_range`."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The embeddings of the whole image are first, then those of its tiles row by row; the five
    reserved vectors of the `Codebook` stand before the first, after the whole image, between the
    tiles of a row, between rows, and at the end (Ovis 2), stored in this order or with `backwards`
    the other way round."""

    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """The first two reserved vectors of the `Codebook` stand before and after the embeddings of an
    image (Ovis 2.5, arXiv:2508.11737)."""


@dataclass(frozen=True, slots=True)
class TileRows:
    """The embeddings of the whole image, then those of its tiles side by side as in the image, each
    with the vector `newline` after every row, and the vector `separator` between the two
    (DeepSeek-VL2). With `whole_last` the tiles are first."""

    newline: str
    separator: str
    whole_last: bool = False


@dataclass(frozen=True, slots=True)
class HdTiles:
    """The states of tiles side by side as in the image, without padding, then the vector
    `separator`, then those of the whole image; the vector `newline` is after every row
    (Phi-4-multimodal, arXiv:2503.01743). Patches that are padding are seen by none."""

    newline: str
    separator: str
    side: int
    """Patches along a side of a tile."""


@dataclass(frozen=True, slots=True)
class ViewTiles:
    """The embeddings of tiles of `tile` x `tile` patches, then those of the whole image of `whole`
    x `whole`, then the vector `separator` (DeepSeek-OCR, arXiv:2510.18234). With `newline`, that
    vector is after each row of both, and tiles lie side by side as in the image."""

    whole: int
    tile: int
    separator: str
    newline: str = ""


@dataclass(frozen=True, slots=True)
class TilesFirst:
    """The embeddings of tiles of `tile` x `tile` patches, then those of the whole image of `whole`
    x `whole` (Step3, arXiv:2507.19427)."""

    whole: int
    tile: int


@dataclass(frozen=True, slots=True)
class OverlappingCrops:
    """Windows of 2 x 2 patches, of the whole image and of what its crops of `side` x `side` patches
    show together, become one embedding each: their mean, of `inputs` channels, attends to them, and
    a gated feed-forward of `width` and `intermediate` channels leads to `hidden` (Molmo 2,
    arXiv:2601.10611). `margins` are patches that the crop before or behind shows, too; `name` is
    the checkpoint's."""

    name: str
    side: int
    margins: tuple[int, int]
    inputs: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    activation: str
    hidden: int


@dataclass(frozen=True, slots=True)
class SamEncoder:
    """Layers over patches that see their windows, or with relative positions of rows and of columns
    all of an image, and convolutions to states of 4 x 4 patches (SAM, arXiv:2304.02643). `prefix`
    is the checkpoint's."""

    prefix: str
    patches: Patches
    hidden: int
    num_layers: int
    num_heads: int
    intermediate: int
    window: int
    full_layers: tuple[int, ...]
    norm: Norm
    neck: int
    """Channels behind the layers."""
    outputs: tuple[int, int]
    """Channels of the last two convolutions."""


@dataclass(frozen=True, slots=True)
class Slices:
    """An image comes as the patches of the whole and of its slices, whose sizes follow from its own
    by `baton.slice_rules.SliceRules`."""

    scale: int
    most: int
    patch: int


@dataclass(frozen=True, slots=True)
class VideoPlaceholders:
    """The placeholders of videos, where they are not those of images."""

    token: int
    """In whose place an embedding goes."""
    tokens_per_second: float = 0.0
    """Positions on the time axis per second of a video (Qwen2.5-VL, arXiv:2502.13923); 0 for one
    per frame of its grid."""


@dataclass(frozen=True, slots=True)
class SplitTiles:
    """An image comes as the patches of its tiles and of the whole, whose sizes follow from its own
    by `rules`."""

    rules: TileSplits


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A stack over patches and a projector to the hidden size of the decoder.

    The states after the layers `taps` (0: the input of the first), or else those of the last
    layer, go through the steps of `projector` and replace the embeddings of the tokens
    `image_token`. Without `drops_class_token` those include the state of the class token.

    All layers but `full_layers` attend within windows of `window` x `window` patches, if that is
    not 0. Each layer of `deepstack` has a projector of its own, whose outputs join the stream of
    the decoder's first layers (Qwen3-VL, arXiv:2511.21631).
    """

    stack: Vision
    projector: tuple[Step, ...]
    image_token: int
    hidden: int
    """Channels of an embedding."""
    drops_class_token: bool = False
    """Whether the states of class token and registers go."""
    taps: tuple[int, ...] = ()
    window: int = 0
    full_layers: tuple[int, ...] = ()
    deepstack: tuple[tuple[int, tuple[Step, ...]], ...] = ()
    arrangement: (
        Newlines
        | Marks
        | Ends
        | TileRows
        | HdTiles
        | ViewTiles
        | TilesFirst
        | OverlappingCrops
        | Slices
        | SplitTiles
        | None
    ) = None
    """The arrangement of the embeddings of tiles; None: in order."""
    front: SamEncoder | None = None
    """Makes the states that the stack takes in the place of projected patches."""
    joined: bool = False
    """Whether the states of `front` are put beside those of the stack."""
    queries: tuple[tuple[str, int], ...] = ()
    """Learned vectors whose states are taken in the place of those of patches, in tables by their
    number for parts of as many states; names are the checkpoint's (DeepSeek-OCR 2)."""
    finish: tuple[Step, ...] = ()
    """Steps behind `arrangement`, which then is one of the states of the stack."""
    video: VideoPlaceholders | None = None
    """Placeholders of videos; None if they are `image_token` too, or there are none."""
    bidirectional: bool = False
    """Whether the tokens of an image see one another in both directions."""
    added: bool = False
    """Whether embeddings are added to those of their tokens, and do not replace them."""
    pooled_frames: int = 0
    """Frames of a video that see one another and become one, the mean of their states; 0 for none
    (MoonViT-3D, arXiv:2602.02276)."""
    cross: bool = False
    """Whether embeddings take the place of no token, see `MediaTower.cross`."""
    rope_index: str = "mrope"
    """Positions of images where tokens have several, a key of
    `engine.multimodal.rope_index.RULES`."""

    @property
    def keeps_class_token(self) -> bool:
        """Whether class token and registers of each part become embeddings."""
        read = any(isinstance(step, QFormer | SummaryNeck) for step in self.projector)
        return self.stack.patches.leading > 0 and not self.drops_class_token and not read

    @property
    def merge(self) -> int:
        """Patches on a side of what becomes one embedding."""
        return _merge_of(self.projector)


def _merge_of(steps: tuple[Step, ...]) -> int:
    for step in steps:
        if isinstance(step, Merge | Convolution):
            return step.size
        if isinstance(step, Abstractor):
            return step.merge
        if isinstance(step, Summed):
            return _merge_of(step.parts[0])
    return 1
