"""DeepSeek-VL2 (arXiv:2412.10302): the resized image, and tiles at the supported resolution that
fits it best, both centered on gray."""

from __future__ import annotations

import msgspec
from PIL import Image, ImageOps

from baton.anyres import Size, best_resolution
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import pixels_of, size_of
from baton_mm_preprocess.processors.tiles import Pixels, colored, cut


class TileRows(msgspec.Struct, frozen=True, tag=True):
    """Pixels [1 + tiles, 3, tile, tile], the resized image first; the grid is (1, rows, columns) of
    tiles."""

    colors: Colors
    tile: int
    offered: tuple[Size, ...]
    side: int
    """Embeddings in a row of a tile."""
    most_images: int = 2
    """Maximum images of a request that are cut into tiles."""

    def among(self, images: int) -> TileRows:
        """The processor of each of this number of images of a request."""
        if images <= self.most_images:
            return self
        return msgspec.structs.replace(self, offered=((self.tile, self.tile),))

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        tile = self.tile, self.tile
        frame = best_resolution(size_of(image), self.offered)
        tiles = [self._padded(image, tile), *cut(self._padded(image, frame), tile)]
        rows, columns = frame[0] // self.tile, frame[1] // self.tile
        whole = self.side * (self.side + 1)
        count = whole + 1 + rows * self.side * (columns * self.side + 1)
        return ProcessedImage(colored(tiles, self.colors), (1, rows, columns), count)

    def _padded(self, image: Image.Image, size: Size) -> Pixels:
        gray = tuple(int(255 * mean) for mean in self.colors.mean)
        return pixels_of(ImageOps.pad(image, size[::-1], color=gray))
