"""Resizing, and the size rules of families. Sizes are (height, width)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

Size: TypeAlias = tuple[int, int]
"""Height and width."""


def resized(image: Image.Image, size: Size, resample: int) -> Image.Image:
    """Resize the image with a filter of Pillow."""
    return image.resize(size[::-1], Image.Resampling(resample))


def resized_by_axis(image: Image.Image, size: Size, resample: int) -> Image.Image:
    """Resize the image: first its width, then its height, as torch resizes frames. Pillow chooses
    the order by cost, and clips values to bytes in between."""
    return resized(resized(image, (image.height, size[1]), resample), size, resample)


def cubic(values: npt.NDArray[np.float32], size: Size) -> npt.NDArray[np.float32]:
    """Resize [channels, height, width] with cubics over four neighbours (Keys 1981, a = -0.75), as
    torch interpolates without antialiasing."""
    for axis, count in ((1, size[0]), (2, size[1])):
        places, shares = _taps(values.shape[axis], count)
        shape = (1, -1, 1) if axis == 1 else (1, 1, -1)
        taps = [
            np.take(values, place, axis) * share.reshape(shape)
            for place, share in zip(places, shares, strict=True)
        ]
        values = np.sum(taps, axis=0)
    return np.ascontiguousarray(values, np.float32)


def linear(values: npt.NDArray[np.float32], size: Size) -> npt.NDArray[np.float32]:
    """As `cubic`, with linear interpolation between two neighbours."""
    for axis, count in ((1, size[0]), (2, size[1])):
        length = values.shape[axis]
        middle = ((np.arange(count) + 0.5) * (length / count) - 0.5).clip(0)
        first = np.floor(middle).astype(np.int64).clip(0, length - 1)
        share = (middle - first).astype(np.float32).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
        second = (first + 1).clip(0, length - 1)
        values = np.take(values, first, axis) * (1 - share) + np.take(values, second, axis) * share
    return np.ascontiguousarray(values, np.float32)


def _taps(length: int, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """[4, count] each: the neighbours of the center of each new cell, and their weights."""
    middle = (np.arange(count) + 0.5) * (length / count) - 0.5
    first = np.floor(middle)
    part, a = middle - first, -0.75
    shares = []
    for distance in (part + 1, part, 1 - part, 2 - part):
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        shares.append(np.where(distance <= 1, near, far))
    places = first.astype(np.int64) + np.arange(-1, 3)[:, None]
    return places.clip(0, length - 1), np.stack(shares).astype(np.float32)


def size_of(image: Image.Image) -> Size:
    """Height and width of an image."""
    return image.height, image.width


def pixels_of(image: Image.Image) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 3]."""
    return np.asarray(image)


def smart(size: Size, factor: int, min_pixels: float, max_pixels: float) -> Size:
    """Qwen2-VL (arXiv:2409.12191): multiples of `factor` with about the image's aspect ratio and a
    product within the limits."""
    height, width = size
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        down = (math.floor(side / beta / factor) * factor for side in size)
        tall, wide = (max(factor, side) for side in down)
    elif tall * wide < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        tall, wide = (math.ceil(side * beta / factor) * factor for side in size)
    return tall, wide


def side_by_side(size: Size, edge: int) -> Size:
    """Keye-VL (arXiv:2507.01949): as `at_least`, for one side after the other, to the nearest
    pixel."""
    height, width = size
    if height < edge:
        height, width = edge, round(width * edge / height)
    if width < edge:
        height, width = round(height * edge / width), edge
    return height, width


def by_shorter_side(size: Size, edge: int) -> Size:
    """Ovis 2.5 (arXiv:2508.11737): if a side is shorter than `edge`, the shorter one becomes
    `edge`, to the nearest pixel. The aspect ratio is limited to 200."""
    height, width = size
    if min(size) < edge:
        if height < width:
            return edge, round(edge / height * width)
        return round(edge / width * height), edge
    if max(size) / min(size) > 200:
        return (200 * width, width) if height > width else (height, 200 * height)
    return size


def inside_rounded_down(size: Size, frame: Size) -> Size:
    """As `inside`, rounded down (MiniMax-VL-01, arXiv:2501.08313)."""
    (height, width), (tall, wide) = size, frame
    if width * tall > wide * height:
        return wide * height // width, wide
    return tall, tall * width // height


def at_least(size: Size, edge: int) -> Size:
    """Enlarged with the same aspect ratio, so that no side is shorter than `edge`."""
    scale = max(edge / side for side in size)
    return size if scale <= 1 else (int(size[0] * scale), int(size[1] * scale))


def by_longer_side(size: Size, edge: int, least: int) -> Size:
    """Aria (arXiv:2410.05993): the longer side becomes `edge`, the other at least `least`."""
    scale = edge / max(size)
    shorter = max(int(min(size) * scale), least)
    return (shorter, edge) if size[1] >= size[0] else (edge, shorter)


def by_longer_side_up(size: Size, edge: int) -> Size:
    """HyperCLOVA X: the longer side becomes `edge`, the other one is rounded up."""
    height, width = size
    if width >= height:
        return math.ceil(height / width * edge), edge
    return edge, math.ceil(width / height * edge)


def no_larger(size: Size, most: Size) -> Size:
    """Nemotron Parse: reduced with about the same aspect ratio, first by the height, then by the
    width, rounded down to at least one pixel a side."""
    height, width = size
    aspect = width / height
    if height > most[0]:
        height, width = most[0], int(most[0] * aspect)
    if width > most[1]:
        height, width = int(most[1] / aspect), most[1]
    return max(1, height), max(1, width)


def fitted(size: Size, longest: int, patch: int) -> Size:
    """Pixtral (arXiv:2410.07073): at most `longest` pixels a side, rounded up to complete
    patches."""
    ratio = max(size) / longest
    if ratio > 1:
        size = math.floor(size[0] / ratio), math.floor(size[1] / ratio)
    height, width = (((side - 1) // patch + 1) * patch for side in size)
    return height, width


def inside(size: Size, frame: Size) -> Size:
    """The largest size with this aspect ratio that fits into `frame`."""
    (height, width), (tall, wide) = size, frame
    if wide / width < tall / height:
        return min(math.ceil(height * (wide / width)), tall), wide
    return tall, min(math.ceil(width * (tall / height)), wide)


@lru_cache(maxsize=16)
def tile_grids(least: int, most: int) -> tuple[Size, ...]:
    """(columns, rows) of every arrangement of `least` to `most` tiles, in ascending number."""
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= columns * rows <= most
    ]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def tile_grid(
    size: Size, tile: Size, least: int, most: int, apart_from: Size | None = None
) -> Size:
    """InternVL (arXiv:2404.16821): rows and columns with the closest aspect ratio; of equal ones,
    more tiles as long as the image fills half of them. `apart_from` excludes grids in which a side
    divides that of this grid (H2OVL, arXiv:2410.13611)."""
    aspect, area = size[1] / size[0], size[0] * size[1]
    best, nearest = (1, 1), math.inf
    for columns, rows in tile_grids(least, most):
        if apart_from and not (apart_from[0] % rows and apart_from[1] % columns):
            continue
        difference = abs(aspect - columns / rows)
        fills = area > 0.5 * tile[0] * tile[1] * columns * rows
        if difference < nearest or (difference == nearest and fills):
            best, nearest = (rows, columns), difference
    return best


def roomy_grid(size: Size, tile: Size, most: int) -> Size:
    """Llama Nemotron Nano VL: rows and columns with the largest product of aspect ratio similarity
    and tile area, limited to 0.6 of the image's; of equal ones, the fewest tiles."""
    aspect, area = size[1] / size[0], size[0] * size[1]
    best, highest = (1, 1), -math.inf
    for columns, rows in tile_grids(1, most):
        share = min(columns * rows * tile[0] * tile[1] / area, 0.6)
        like = min(columns / rows / aspect, aspect / (columns / rows))
        if share * like > highest:
            best, highest = (rows, columns), share * like
    return best


def floored_inside(size: Size, frame: Size) -> Size:
    """The largest size with this aspect ratio that fits into `frame`, rounded down to at least one
    pixel a side."""
    (height, width), (tall, wide) = size, frame
    scale_w, scale_h = wide / width, tall / height
    if scale_w < scale_h:
        return max(1, min(math.floor(height * scale_w), tall)), wide
    return tall, max(1, min(math.floor(width * scale_h), wide))


def canvas_grid(size: Size, tile: int, most: int) -> Size:
    """Llama 4: rows and columns of the canvas that enlarges the image least, or else reduces it
    least; of equal ones, the smallest."""
    scales = {
        (rows, columns): min(columns * tile / size[1], rows * tile / size[0])
        for columns, rows in tile_grids(1, most)
    }
    large = [scale for scale in scales.values() if scale >= 1]
    best = min(large) if large else max(scales.values())
    return min((g for g in scales if scales[g] == best), key=lambda g: g[0] * g[1])


def least_upscaled_grid(size: Size, tile: Size, most: int) -> Size:
    """Command A Vision: rows and columns that enlarge the image least; if none is large enough,
    those that reduce it least."""
    scales = {
        (rows, columns): min(columns * tile[1] / size[1], rows * tile[0] / size[0])
        for columns, rows in tile_grids(1, most)
    }
    large = {grid: scale for grid, scale in scales.items() if scale >= 1}
    return min(large, key=large.__getitem__) if large else max(scales, key=scales.__getitem__)


def covering_grid(size: Size, tile: int, most: int, enough: float = 0.9) -> Size:
    """Ovis2 in transformers: `covering_parts` with rows and columns exchanged."""
    rows, columns = covering_parts(size, tile, most, enough)
    return columns, rows


def covering_parts(size: Size, tile: int, most: int, enough: float = 0.9) -> Size:
    """Ovis2 (arXiv:2405.20797): rows and columns of the fewest parts that cover more than `enough`
    of the image's pixels, or else of those that cover most."""
    shown = {grid: _shown(size, grid, tile) for grid in tile_grids(1, most)}
    good = {grid: share for grid, share in shown.items() if share > enough}
    if good:
        return min(good, key=lambda grid: (grid[0] * grid[1], -good[grid]))
    return min(shown, key=lambda grid: (-shown[grid], grid[0] * grid[1]))


def _shown(size: Size, grid: Size, tile: int) -> float:
    """The share of an image's pixels that remains if each cell of a grid is reduced to fit a
    tile."""
    heights, widths = (parts_of(side, count) for side, count in zip(size, grid, strict=True))
    cells = [(max(h, w), min(h, w)) for h in heights for w in widths]
    kept = (long * short if long <= tile else short / long * tile * tile for long, short in cells)
    return sum(kept) / (size[0] * size[1])


def parts_of(side: int, count: int) -> list[int]:
    """A side in equal parts; the last one takes the rest."""
    return [side // count] * (count - 1) + [side - side // count * (count - 1)]


def longest_edge(size: Size, edge: int) -> Size:
    """Idefics3 (arXiv:2408.12637): the longer side becomes `edge`, the other one even."""
    height, width = size
    aspect = width / height
    if width >= height:
        height, width = int(edge / aspect), edge
        return max(height + height % 2, 1), width
    height, width = edge, int(edge * aspect)
    return height, max(width + width % 2, 1)


def at_most(size: Size, edge: int) -> Size:
    """Reduced with the same aspect ratio, so that no side is longer than `edge`."""
    height, width = size
    aspect = width / height
    if width >= height and width > edge:
        height, width = int(edge / aspect), edge
    elif height > width and height > edge:
        height, width = edge, int(edge * aspect)
    return max(height, 1), max(width, 1)


def whole_tiles(size: Size, tile: int) -> Size:
    """Idefics3: both sides multiples of `tile`, the longer one first."""
    height, width = size
    aspect = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return math.ceil(int(width / aspect) / tile) * tile, width
    height = math.ceil(height / tile) * tile
    return height, math.ceil(int(height * aspect) / tile) * tile


_PRECISION = 1e-5
_LARGEST_SCALE = 100.0


def rounded_up(size: Size, factor: int, least: int, most: int) -> Size:
    """Isaac: both sides rounded up to multiples of `factor`, at the scale nearest to 1 that
    satisfies the limits on the number of `factor` x `factor` windows; found by bisection."""

    def at(scale: float) -> Size:
        height, width = (max(1, math.ceil(scale * side / factor)) * factor for side in size)
        return height, width

    def windows(scale: float) -> int:
        height, width = at(scale)
        return height * width // factor**2

    if windows(1.0) < least:
        low, high = 1.0, _LARGEST_SCALE
        while high - low >= _PRECISION:
            middle = (low + high) / 2
            low, high = (low, middle) if windows(middle) >= least else (middle, high)
        return at(high)
    if windows(1.0) <= most:
        return at(1.0)
    low, high = _PRECISION / 10, 1.0
    while high - low >= _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if windows(middle) <= most else (low, middle)
    return at(low)


def interpolated(pixels: npt.NDArray[np.uint8], size: Size) -> npt.NDArray[np.float32]:
    """Resize [height, width, C] bilinearly without antialiasing, as torch interpolates."""
    out = pixels.astype(np.float32)
    for axis, count in enumerate(size):
        have = out.shape[axis]
        places = (np.arange(count, dtype=np.float32) + 0.5) * np.float32(have / count) - 0.5
        places = np.maximum(places, 0.0)
        low = np.minimum(places.astype(np.int64), have - 1)
        high = np.minimum(low + 1, have - 1)
        share = np.expand_dims(
            (places - low).astype(np.float32), [a for a in range(3) if a != axis]
        )
        first, second = np.take(out, low, axis), np.take(out, high, axis)
        out = first * (1 - share) + second * share
    return out
