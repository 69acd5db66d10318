"""Forward pass of a dual encoder: texts and images, each in its own tower."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.forward.encoder_forward import EncoderForward, check_whole
from baton_worker.models.dual_encoder import DualEncoderModel


class DualEncoderForward(EncoderForward):
    """See `ForwardPass`."""

    def __init__(self, model: DualEncoderModel, device: torch.device) -> None:
        super().__init__(model, device)
        self._towers = model

    def __call__(self, inputs: StepInputs) -> Tensor:
        """One vector per row, [B, width]."""
        check_whole(inputs)
        is_image = np.array([slot in inputs.images for slot in inputs.rows.slots.tolist()])
        parts = []
        if not is_image.all():
            parts.append(self._towers.embed_texts(self._texts(inputs.take(~is_image))))
        if is_image.any():
            parts.append(self._towers.embed_images(self._images(inputs.take(is_image))))
        order = np.argsort(np.concatenate((np.flatnonzero(~is_image), np.flatnonzero(is_image))))
        return torch.cat(parts).index_select(0, self._tensor(order))

    def _texts(self, inputs: StepInputs) -> list[Tensor]:
        """The tokens of each text, int64."""
        texts = np.split(inputs.tokens, np.cumsum(inputs.rows.counts)[:-1])
        return [self._tensor(tokens) for tokens in texts]

    def _images(self, inputs: StepInputs) -> Tensor:
        """float32 [B, 3, height, width]."""
        pixels = np.stack([inputs.images[slot] for slot in inputs.rows.slots.tolist()])
        return torch.from_numpy(pixels).to(self._device)
