"""Placeholder tokens of images in prompts, as in transformers' processors.

Pieces are text, counts of image tokens, and tokens by their ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from baton_mm_preprocess.processors.fitted_patches import FittedPatches
from baton_mm_preprocess.processors.patch_sequence import PatchSequence
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.processors.sizes import Size
from baton_mm_preprocess.processors.tilings.rounded_patches import RoundedPatches


class Token(NamedTuple):
    """A token named by the config, by its id."""

    id: int


class Number(NamedTuple):
    """The number of the image in its conversation."""

    first: int = 0
    """The number of the first image."""


Piece: TypeAlias = str | int | Token | Number
Placeholder: TypeAlias = Callable[[Any, Grid, int], Iterable[Piece]]
"""(processor, grid, number of embeddings) -> pieces."""
Encode: TypeAlias = Callable[[str], list[int]]
"""Text -> token ids, without those that begin or end a prompt."""


def token_ids(
    pieces: Iterable[Piece], image_token: int, encode: Encode, number: int = 0
) -> list[int]:
    """The ids of pieces of image `number`; adjacent texts are encoded as one."""
    ids, text = list[int](), ""
    for piece in pieces:
        if isinstance(piece, str | Number):
            text += piece if isinstance(piece, str) else str(number + piece.first)
            continue
        ids += encode(text) if text else []
        ids += [piece.id] if isinstance(piece, Token) else [image_token] * piece
        text = ""
    return ids + (encode(text) if text else [])


def runs(ids: list[int], token: int) -> Iterator[tuple[int, int]]:
    """Index and length of each run of one token."""
    first = 0
    for id_, run in groupby(ids):
        count = len(list(run))
        if id_ == token:
            yield first, count
        first += count


def plain(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens only."""
    return [num_tokens]


def single(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """One image token, regardless of the number of encoder states."""
    return [1]


def llava(processor: Any, grid: Grid, num_tokens: int) -> Iterable[Piece]:
    """Image tokens only, or rows of them for Pixtral's encoder."""
    as_pixtral = isinstance(processor, FittedPatches)
    return pixtral(processor, grid, num_tokens) if as_pixtral else [num_tokens]


def gemma3n(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between marks; the end mark has the last embedding."""
    return ["\n\n<start_of_image>", num_tokens - 1, "<end_of_image>\n\n"]


def gemma3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Each tile between marks; crops are introduced by a text."""
    count = processor.tokens_per_tile
    tiles = num_tokens // count
    pieces: list[Piece] = ["\n\n<start_of_image>", count, "<end_of_image>\n\n"]
    if tiles == 1:
        yield from pieces
        return
    yield "Here is the original image "
    yield from pieces
    yield " and here are some crops to help you see better "
    for crop in range(tiles - 1):
        yield from ([" "] if crop else [])
        yield from pieces


def pixtral(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """A token after every row, another one at the end."""
    rows, columns = grid[1] // processor.merge, grid[2] // processor.merge
    for row in range(rows):
        yield columns
        yield "[IMG_BREAK]" if row < rows - 1 else "[IMG_END]"


def idefics3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles by row and column, then the resized image."""
    _, rows, columns = grid
    around, count = "<fake_token_around_image>", processor.tokens_per_tile
    for row in range(rows):
        for column in range(columns):
            yield f"{around}<row_{row + 1}_col_{column + 1}>"
            yield count
        yield "\n"
    yield f"\n{around}<global-img>" if rows else f"{around}<global-img>"
    yield count
    yield around


def internvl(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between marks."""
    return ["<img>", num_tokens, "</img>"]


def janus(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between marks."""
    return ["<begin_of_image>", num_tokens, "<end_of_image>"]


def chameleon(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between marks."""
    return ["<racm3:break>", num_tokens, "<eoss>"]


def cohere2(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """A mark after every tile."""
    count = processor.tokens_per_tile
    yield "<|START_OF_IMG|>"
    for _ in range(num_tokens // count):
        yield count
        yield "<|IMG_LINE_BREAK|>"
    yield "<|END_OF_IMG|>"


def llama4(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles with marks between columns and after rows, then the resized image."""
    _, rows, columns = grid
    count = processor.tokens_per_tile
    yield "<|image_start|>"
    for _ in range(rows if rows * columns > 1 else 0):
        for column in range(columns):
            yield "<|tile_x_separator|>" if column else ""
            yield count
        yield "<|tile_y_separator|>"
    yield "<|image|>"
    yield count
    yield "<|image_end|>"


def aya(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Numbered tiles, then the resized image."""
    count = processor.tokens_per_tile
    yield "<|START_OF_IMG|>"
    for tile in range(1, num_tokens // count):
        yield f"TILE_{tile}"
        yield count
    yield "TILE_GLOBAL"
    yield count
    yield "<|END_OF_IMG|>"


def ovis2(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """The marks are image tokens too, with embeddings from the tower."""
    tiles = grid[1] * grid[2] if grid[1] * grid[2] > 1 else 0
    return [num_tokens + 3 + max(0, tiles - 1)]


def tarsier(newline: int, end: int) -> Placeholder:
    """A token after every row of a square image, and one at the end."""

    def pieces(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
        side = math.isqrt(num_tokens)
        for _ in range(side):
            yield from (side, Token(newline))
        yield Token(end)

    return pieces


def between(begin: int, end: int) -> Placeholder:
    """Image tokens between two tokens."""

    def pieces(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
        return [Token(begin), num_tokens, Token(end)]

    return pieces


def ends(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Both ends of an image are image tokens too."""
    return [num_tokens + 2]


def kanana(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """A new line before every row."""
    rows, columns = grid[1] // processor.merge, grid[2] // processor.merge
    for _ in range(rows):
        yield from ("\n", columns)


def vila(start: str, end: str) -> Placeholder:
    """Each tile between marks with token embeddings; one line per image that is cut into tiles."""

    def pieces(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
        count = processor.tiles.tokens_per_tile
        for _ in range(num_tokens // count):
            # Without image tokens between two texts, these are encoded separately.
            yield from (start, count, end, 0, "\n" if grid[1] else "", 0)

    return pieces


def lfm2(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles by row and column, then the resized image."""
    if not processor.marked:
        yield num_tokens
        return
    rules, size = processor.rules, (grid[1], grid[2])
    rows, columns = rules.grid(size) or (0, 0)
    per_tile = (rules.tile // rules.patch // rules.merge) ** 2
    yield "<|image_start|>"
    for row in range(rows):
        for column in range(columns):
            yield f"<|img_row_{row + 1}_col_{column + 1}|>"
            yield per_tile
    yield "<|img_thumbnail|>" if rows else ""
    yield num_tokens - rows * columns * per_tile
    yield "<|image_end|>"


def molmo2(flags: Mapping[str, Any]) -> Placeholder:
    """The resized image, then the joined crops in rows, with or without row ends."""
    columns = flags.get("image_use_col_tokens", True)
    whole_columns = flags.get("use_single_crop_col_tokens")
    whole_columns = columns if whole_columns is None else whole_columns
    start = "<low_res_im_start>" if flags.get("use_single_crop_start_token", True) else "<im_start>"

    def view(begin: str, size: Size, *, ended: bool) -> Iterator[Piece]:
        yield begin
        for _ in range(size[0]):
            yield from (size[1], "<im_col>" if ended else "")
        yield "<im_end>"

    def pieces(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
        num_resized = processor.embeddings((processor.crop, processor.crop))
        yield from view(start, num_resized, ended=whole_columns)
        crops = processor.embeddings(processor.frame(grid[1], grid[2]))
        yield from view("<im_start>", crops, ended=columns)

    return pieces


def step3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles between marks, with another mark between rows, then the resized image."""
    _, rows, columns = grid
    for row in range(rows if rows * columns > 1 else 0):
        yield "<patch_newline>" if row else ""
        for _ in range(columns):
            yield from ("<patch_start>", processor.tile_tokens, "<patch_end>")
    yield from ("<im_start>", processor.base_tokens, "<im_end>")


def minicpm(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """The resized image, then rows of slices."""
    count = processor.tokens_per_part
    if processor.numbered:
        yield from ("<image_id>", Number(), "</image_id>")
    yield from ("<image>", count, "</image>")
    rows, columns = processor.rules.grid((grid[1], grid[2])) or (0, 0)
    name = "image" if processor.nested else "slice"
    yield "<slice>" if processor.nested and rows else ""
    for row in range(rows):
        yield "\n" if row else ""
        for _ in range(columns):
            yield from (f"<{name}>", count, f"</{name}>")
    yield "</slice>" if processor.nested and rows else ""


def qwen_vl(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """A numbered line for each image."""
    return ["Picture ", Number(1), ": <img>", num_tokens, "</img>\n"]


_UNSIZED: tuple[Placeholder, ...] = (plain, single, llava, internvl, janus)
"""Placeholders that depend on the number of embeddings only, restricted to these processors."""
_SIZED = (FittedPatches, PatchSequence, RoundedPatches)


def takes_embeds(processor: Any, placeholder: Placeholder) -> bool:
    """Whether an image's placeholder depends on the number of its embeddings only, and the
    positions of its tokens do too."""
    return placeholder in _UNSIZED and not isinstance(processor, _SIZED)
