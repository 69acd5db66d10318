"""The encoder of the images in a decoder's prompt, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.encoder import Dense, Vision


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """A stack over patches and a projector to the hidden size of the decoder.

    The states of the stack's last layer, without the first one if `drops_class_token`, go through
    `projector` and replace the embeddings of the tokens `image_token`.
    """

    stack: Vision
    projector: tuple[Dense, ...]
    image_token: int
    drops_class_token: bool = False

    @property
    def num_tokens(self) -> int:
        """Number of embeddings per image."""
        return self.stack.patches.count - self.drops_class_token
