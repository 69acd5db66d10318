"""The union of all processors, and their variant for several images."""

from __future__ import annotations

from typing import TypeAlias

from baton_mm_preprocess.processors.any_resolution import AnyResolution
from baton_mm_preprocess.processors.dynamic_tiles import DynamicTiles
from baton_mm_preprocess.processors.fitted_patches import FittedPatches
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.processors.image_splits import ImageSplits
from baton_mm_preprocess.processors.limited_patches import LimitedPatches
from baton_mm_preprocess.processors.padded_patches import PaddedPatches
from baton_mm_preprocess.processors.padded_tiles import PaddedTiles
from baton_mm_preprocess.processors.pan_and_scan import PanAndScan
from baton_mm_preprocess.processors.patch_sequence import PatchSequence
from baton_mm_preprocess.processors.tilings.framed_parts import FramedParts
from baton_mm_preprocess.processors.tilings.hd_tiles import HdTiles
from baton_mm_preprocess.processors.tilings.image_slices import ImageSlices
from baton_mm_preprocess.processors.tilings.lone_tiles import LoneTiles
from baton_mm_preprocess.processors.tilings.multi_scale_tiles import MultiScaleTiles
from baton_mm_preprocess.processors.tilings.overlapping_crops import OverlappingCrops
from baton_mm_preprocess.processors.tilings.page_patches import PagePatches
from baton_mm_preprocess.processors.tilings.patch_budget import PatchBudget
from baton_mm_preprocess.processors.tilings.rounded_patches import RoundedPatches
from baton_mm_preprocess.processors.tilings.split_tiles import SplitTiles
from baton_mm_preprocess.processors.tilings.tile_rows import TileRows
from baton_mm_preprocess.processors.tilings.tiles_first import TilesFirst
from baton_mm_preprocess.processors.tilings.view_tiles import ViewTiles

Processor: TypeAlias = (
    FixedSize
    | PanAndScan
    | PatchSequence
    | FittedPatches
    | AnyResolution
    | ImageSplits
    | DynamicTiles
    | PaddedTiles
    | PaddedPatches
    | LimitedPatches
    | ImageSlices
    | SplitTiles
    | TileRows
    | HdTiles
    | ViewTiles
    | OverlappingCrops
    | TilesFirst
    | MultiScaleTiles
    | LoneTiles
    | PagePatches
    | FramedParts
    | RoundedPatches
    | PatchBudget
)


def among(processor: Processor, images: int) -> Processor:
    """The processor of each of this number of images of a request."""
    if isinstance(processor, TileRows | MultiScaleTiles | LoneTiles):
        return processor.among(images)
    return processor
