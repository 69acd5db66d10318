"""Times of tokens in a recording, from the attention of alignment heads, as Whisper's authors
compute them (https://github.com/openai/whisper, whisper/timing.py)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Matrix = npt.NDArray[np.float64]
_DIAGONAL, _DOWN, _RIGHT = range(3)
"""Steps of a path: to the next row and column, to the next row, to the next column."""


def token_places(weights: Tensor, filter_width: int) -> npt.NDArray[np.int64]:
    """Return int64 [tokens]: the state at which each token begins.

    Args:
        weights: float32 [heads, tokens, states], of successive tokens.
        filter_width: odd number of states over which weights are smoothed.
    """
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    # A state to which all tokens attend alike has no deviation: 0, not 0 / 0.
    normed = torch.where(deviation > 0, (weights - mean) / deviation, 0)
    matrix = median_filter(normed, filter_width).mean(dim=0)
    return path_starts(-matrix.cpu().double().numpy())


def median_filter(x: Tensor, width: int) -> Tensor:
    """Return the medians over `width` neighbours along the last dimension of x [heads, any, any],
    which is mirrored at its ends; x itself if it is too short for that."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = F.pad(x, (half, half), mode="reflect")
    return torch.stack([_medians(head, width) for head in padded])


def _medians(x: Tensor, width: int) -> Tensor:
    """The medians of all windows of the last dimension: by exchanges that order the greater half of
    a window, of all windows at once, which takes less than `sort` or `median`."""
    size = x.shape[-1] - width + 1
    places = [x[..., first : first + size] for first in range(width)]
    for end in range(width - 1, width // 2 - 1, -1):
        for at in range(end):
            one, two = places[at], places[at + 1]
            places[at], places[at + 1] = torch.minimum(one, two), torch.maximum(one, two)
    return places[width // 2]


def path_starts(costs: Matrix) -> npt.NDArray[np.int64]:
    """Return int64 [rows]: the first column of each row on the cheapest path from the first cell to
    the last one (dynamic time warping, Sakoe and Chiba 1978)."""
    steps, starts = _steps(costs), np.zeros(len(costs), np.int64)
    row, column = (size - 1 for size in costs.shape)
    while row > 0:
        step = steps[row, column]
        starts[row] = column
        row -= step != _RIGHT
        column -= step != _DOWN
    return starts


def _steps(costs: Matrix) -> npt.NDArray[np.uint8]:
    """The last step of the cheapest path to each cell: one diagonal of cells after the other, which
    depend on the two diagonals before alone. Sums are float32, as in the original."""
    rows, columns = costs.shape
    steps = np.full(costs.shape, _RIGHT, np.uint8)
    # By row, with one more before the first: outside is unreachable, but for the corner.
    older, old = (np.full(rows + 1, np.inf, np.float32) for _ in range(2))
    older[0] = 0
    for diagonal in range(rows + columns - 1):
        row = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        across, down, right = older[row], old[row], old[row + 1]
        step = np.where((across < down) & (across < right), _DIAGONAL, _RIGHT)
        step[(down < across) & (down < right)] = _DOWN
        steps[row, diagonal - row] = step
        new = np.full(rows + 1, np.inf, np.float32)
        new[row + 1] = costs[row, diagonal - row] + np.choose(step, (across, down, right))
        older, old = old, new
    return steps
