"""Specs of towers to modules."""

from __future__ import annotations

from torch import nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models.audio.conformer_tower import ConformerTower
from baton_worker.models.audio.tower import AudioTower
from baton_worker.models.audio.windowed_tower import WindowedTower
from baton_worker.models.tower_pair import TowerPair
from baton_worker.models.vision.frame_pooling_tower import FramePoolingTower
from baton_worker.models.vision.media_tower import MediaTower
from baton_worker.models.vision.mobile_tower import MobileTower
from baton_worker.models.vision.tiled_tower import TiledTower
from baton_worker.models.vision.tower import VisionTower
from baton_worker.models.vision.vq_tower import VqTower


def build_tower(tower: spec.Tower, context: BuildContext) -> MediaTower:
    """The modules of a tower with uninitialised parameters."""
    if isinstance(tower, spec.AudioTower):
        return AudioTower(tower, context)
    if isinstance(tower, spec.TowerPair):
        return TowerPair(build_tower(tower.vision, context), build_tower(tower.audio, context))
    if isinstance(tower, spec.WindowedTower):
        return WindowedTower(tower, context)
    if isinstance(tower, spec.ConformerTower):
        return ConformerTower(tower, context)
    if isinstance(tower, spec.VqTower):
        return VqTower(tower, context)
    if isinstance(tower, spec.MobileTower):
        return MobileTower(tower, context)
    if isinstance(tower, spec.TiledTower):
        return TiledTower(tower, context)
    return FramePoolingTower(tower, context) if tower.pooled_frames else VisionTower(tower, context)


class TowerModel(nn.Module):
    """A tower without its decoder, which encode workers run."""

    def __init__(self, tower: spec.Tower, context: BuildContext) -> None:
        super().__init__()
        self.vision = build_tower(tower, context)

    def layers(self) -> list[Layer]:
        """Every layer that holds weights, in execution order."""
        return [module for module in self.modules() if isinstance(module, Layer)]
