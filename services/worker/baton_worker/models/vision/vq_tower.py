"""A vision tower whose images become tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.vq_encoder import VqEncoder
from baton_worker.models.vision.media_tower import MediaTower


class VqTower(MediaTower):
    """See `spec.VqTower`. Images are [3, image, image] and run one by one, so that the tokens of
    one do not depend on others."""

    def __init__(self, tower: spec.VqTower, context: BuildContext) -> None:
        super().__init__()
        self.settings, self.encoder = tower, VqEncoder(tower, context)
        self.image_token, self.media_tokens = tower.image_token, (tower.image_token,)
        self._tokens = torch.tensor((*tower.tokens, -1), dtype=torch.int32, device=context.device)
        self._context = context

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """See `MediaTower.refusal`."""
        expected = [3, self.settings.image, self.settings.image]
        if list(shape) == expected:
            return ""
        return f"an image of shape {expected} was expected, not {list(shape)}"

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """The same for all images."""
        return self.settings.num_tokens

    def sample_media(self, num_tokens: int) -> list[tuple[tuple[int, ...], Grid]]:
        """See `MediaTower.sample_media`: one, since they run one by one."""
        return [((3, self.settings.image, self.settings.image), (1, 1, 1))]

    @property
    def width(self) -> int:
        """One token."""
        return 1

    @property
    def dtype(self) -> torch.dtype:
        """Of tokens."""
        return torch.int32

    @property
    def progress(self) -> int:
        """Number of blocks run since construction, for watchdogs."""
        return self.encoder.progress

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 images to int32 [num_tokens, 1] each; -1 where the encoder's state is not
        finite."""
        device, dtype = self._context.device, self._context.dtype
        return [self._tokens[self.encoder(image.to(device, dtype))][:, None] for image in pixels]
