"""Images to vectors, against a convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.patch_embedding import Patches, squares

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


def filled(settings: spec.Patches, hidden: int) -> tuple[Patches, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    layer = Patches(settings, hidden, SITE)
    layers = [part for part in layer.modules() if isinstance(part, Layer)]
    tensors = {}
    for part in layers:
        for name, place in part.weight_targets():
            tensors[name] = torch.randn(place.shape)
            place.copy_(tensors[name])
        part.process_weights_after_loading()
    return layer, tensors


@pytest.mark.parametrize("image", [12, 14])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("class_token", [False, True])
def test_against_a_convolution(image: int, bias: bool, class_token: bool) -> None:
    """14 pixels hold three squares of 4, and two that nobody sees."""
    settings = spec.Patches(image, 4, bias=bias, class_token=class_token)
    layer, tensors = filled(settings, 5)
    pixels = torch.randn(2, 3, image, image)
    assert tensors["patches.weight"].shape == (5, 3, 4, 4)
    expected = F.conv2d(pixels, tensors["patches.weight"], tensors.get("patches.bias"), stride=4)
    expected = expected.flatten(2).transpose(1, 2)
    if class_token:
        first = tensors["class_token"].expand(2, 1, -1)
        expected = torch.cat((first, expected), dim=1)
    expected = (expected + tensors["positions.weight"]).flatten(0, 1)
    assert settings.count == 9 + class_token and len(expected) == 2 * settings.count
    torch.testing.assert_close(layer(pixels), expected, atol=1e-5, rtol=1e-5)


def test_squares_lie_row_by_row() -> None:
    pixels = torch.arange(36.0).view(1, 1, 6, 6)
    found = squares(pixels, 3)
    assert found[1].tolist() == [3, 4, 5, 9, 10, 11, 15, 16, 17]
    assert found[2].tolist() == [18, 19, 20, 24, 25, 26, 30, 31, 32]
