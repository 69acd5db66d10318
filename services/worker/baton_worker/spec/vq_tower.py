"""An encoder of images whose codes are tokens of the vocabulary, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VqTower:
    """The encoder of a VQ-VAE (van den Oord et al. 2017, arXiv:1711.00937; with a U-Net's downward
    half as in Make-A-Scene, arXiv:2203.13131), and the token of each of its codes.

    An image of `image` x `image` pixels is convolved to `base` channels and goes through levels of
    `channels`, each of `num_blocks` residual blocks, with attention behind each where `attends`
    holds; between levels both sides are halved. The result has `latent` channels, then the
    `code_width` of a code; the nearest code's token takes the place of an `image_token`.
    """

    name: str
    """Prefix of its tensors."""
    image: int
    base: int
    channels: tuple[int, ...]
    attends: tuple[bool, ...]
    num_blocks: int
    middle_attends: bool
    latent: int
    code_width: int
    tokens: tuple[int, ...]
    """By code."""
    image_token: int

    @property
    def num_tokens(self) -> int:
        """Tokens of an image."""
        side: int = self.image >> (len(self.channels) - 1)
        return side**2
