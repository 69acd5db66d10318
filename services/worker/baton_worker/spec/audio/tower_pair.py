"""Two encoders of one model, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton_worker.spec.audio.conformer import ConformerTower
from baton_worker.spec.audio.windowed_tower import WindowedTower
from baton_worker.spec.mobile_tower import MobileTower
from baton_worker.spec.vision import VisionTower

if TYPE_CHECKING:
    from baton_worker.spec import Tower


@dataclass(frozen=True, slots=True)
class TowerPair:
    """The encoder of images and videos, and that of sounds."""

    vision: VisionTower | MobileTower
    audio: ConformerTower | WindowedTower


def towers(tower: Tower | None) -> tuple[Tower, ...]:
    """The encoders that a tower has: itself, or both of a pair."""
    if tower is None:
        return ()
    return (tower.vision, tower.audio) if isinstance(tower, TowerPair) else (tower,)
