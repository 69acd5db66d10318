"""What stands for an image in a prompt, as transformers' processors write it.

Pieces are text, numbers that count image tokens, and tokens by their ids.
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
    """A token that the config names by its id."""

    id: int


class Number(NamedTuple):
    """The number of the image in its conversation."""

    first: int = 0
    """That of the first image."""


Piece: TypeAlias = str | int | Token | Number
Placeholder: TypeAlias = Callable[[Any, Grid, int], Iterable[Piece]]
"""A processor, and the grid and number of embeddings of the image that it made, to pieces."""
Encode: TypeAlias = Callable[[str], list[int]]
"""Text to token ids, without those that begin or end a prompt."""


def token_ids(
    pieces: Iterable[Piece], image_token: int, encode: Encode, number: int = 0
) -> list[int]:
    """The ids of pieces of image `number`; texts that follow one another are encoded as one."""
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
    """Index of the first and number of the ids of each run of one token."""
    first = 0
    for id_, run in groupby(ids):
        count = len(list(run))
        if id_ == token:
            yield first, count
        first += count


def plain(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens alone."""
    return [num_tokens]


def one(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """One image token, however many states tokens attend to."""
    return [1]


def llava(processor: Any, grid: Grid, num_tokens: int) -> Iterable[Piece]:
    """Image tokens alone, or rows of them for Pixtral's encoder."""
    as_pixtral = isinstance(processor, FittedPatches)
    return pixtral(processor, grid, num_tokens) if as_pixtral else [num_tokens]


def gemma3n(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between their marks, of which the last is the last embedding."""
    return ["\n\n<start_of_image>", num_tokens - 1, "<end_of_image>\n\n"]


def gemma3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Each tile between its marks; crops are announced."""
    count = processor.tokens_per_tile
    tiles = num_tokens // count
    whole: list[Piece] = ["\n\n<start_of_image>", count, "<end_of_image>\n\n"]
    if tiles == 1:
        yield from whole
        return
    yield "Here is the original image "
    yield from whole
    yield " and here are some crops to help you see better "
    for crop in range(tiles - 1):
        yield from ([" "] if crop else [])
        yield from whole


def pixtral(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """A token after every row, another one at the end."""
    rows, columns = grid[1] // processor.merge, grid[2] // processor.merge
    for row in range(rows):
        yield columns
        yield "[IMG_BREAK]" if row < rows - 1 else "[IMG_END]"


def idefics3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles by row and column, then the whole image."""
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
    """Image tokens between their marks."""
    return ["<img>", num_tokens, "</img>"]


def chameleon(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens between their marks."""
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
    """Tiles with marks between columns and after rows, then the whole image."""
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
    """Numbered tiles, then the whole image."""
    count = processor.tokens_per_tile
    yield "<|START_OF_IMG|>"
    for tile in range(1, num_tokens // count):
        yield f"TILE_{tile}"
        yield count
    yield "TILE_GLOBAL"
    yield count
    yield "<|END_OF_IMG|>"


def ovis2(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens in the place of the marks, too, whose embeddings come from the tower."""
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


def ends(processor: Any, grid: Grid, num_tokens: int) -> list[Piece]:
    """Image tokens in the place of both ends of an image, too."""
    return [num_tokens + 2]


def kanana(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """A new line before every row."""
    rows, columns = grid[1] // processor.merge, grid[2] // processor.merge
    for _ in range(rows):
        yield from ("\n", columns)


def vila(start: str, end: str) -> Placeholder:
    """Each tile between texts that have embeddings of their own, and a line for each of an image
    that is cut into tiles."""

    def pieces(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
        count = processor.tiles.tokens_per_tile
        for _ in range(num_tokens // count):
            # No image tokens between two texts: they are encoded apart.
            yield from (start, count, end, 0, "\n" if grid[1] else "", 0)

    return pieces


def lfm2(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles by row and column, then the whole image."""
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
    """The whole image, then what its crops show together, in rows with an end or without."""
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
        whole = processor.embeddings((processor.crop, processor.crop))
        yield from view(start, whole, ended=whole_columns)
        crops = processor.embeddings(processor.frame(grid[1], grid[2]))
        yield from view("<im_start>", crops, ended=columns)

    return pieces


def step3(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """Tiles between marks, with another one between rows, then the whole image."""
    _, rows, columns = grid
    for row in range(rows if rows * columns > 1 else 0):
        yield "<patch_newline>" if row else ""
        for _ in range(columns):
            yield from ("<patch_start>", processor.tile_tokens, "<patch_end>")
    yield from ("<im_start>", processor.whole_tokens, "<im_end>")


def minicpm(processor: Any, grid: Grid, num_tokens: int) -> Iterator[Piece]:
    """The whole image, then rows of slices."""
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


_UNSIZED: tuple[Placeholder, ...] = (plain, one, llava, internvl)
"""Those that follow from the number of embeddings alone, of processors but these."""
_SIZED = (FittedPatches, PatchSequence, RoundedPatches)


def takes_embeds(processor: Any, placeholder: Placeholder) -> bool:
    """Whether what stands for an image follows from the number of its embeddings alone, and the
    positions of its tokens do, too."""
    return placeholder in _UNSIZED and not isinstance(processor, _SIZED)
