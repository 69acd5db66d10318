"""Small caches whose pages can be told apart, for transfers between two of them."""

from __future__ import annotations

import torch

from baton.protocol import Grant
from baton.protocol.token_columns import pack
from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import KVCache
from baton_worker.spec import (
    Attention,
    Decoder,
    Glu,
    Head,
    Norm,
    Rope,
)
from tests.fakes.device_double import DeviceTensor, Double

TOKEN = bytes(range(16))
LENGTH = 37


def spec(*heads: int) -> Decoder:
    rope = Rope(dim=8, base=1e4, max_position=64)
    layers = tuple((Attention(4, n, 8, 1.0, rope), Glu(16)) for n in heads)
    return Decoder(16, 32, layers, Norm(1e-5), Head())


def cache(
    page_size: int,
    dtype: torch.dtype = torch.bfloat16,
    codes: KVCodes | None = None,
    layout: Layout = Layout.NHD,
    device: torch.device | None = None,
) -> KVCache:
    """Two layers of different widths, 64 tokens."""
    return KVCache(
        spec(1, 4),
        64 // page_size,
        page_size,
        dtype=dtype,
        device=device or torch.device("cpu"),
        codes=codes,
        layout=layout,
    )


def filled(page_size: int, codes: KVCodes | None = None, layout: Layout = Layout.NHD) -> KVCache:
    made = cache(page_size, codes=codes, layout=layout)
    generator = torch.Generator().manual_seed(0)
    for layer in made.layers:
        if codes is None:
            layer.copy_(torch.randn(layer.shape, generator=generator))
        else:
            layer.copy_(torch.randint(256, layer.shape, generator=generator, dtype=torch.uint8))
    return made


def tokens(of: KVCache, layer: int, pages: list[int]) -> torch.Tensor:
    return of.layers[layer][pages].flatten(0, 1)[:LENGTH]


SOURCE_PAGES = [7, 2, 5, 0, 3]
GRANT = Grant(1, 9, TOKEN, pack(SOURCE_PAGES, "I"), LENGTH)


def on_double(layout: Layout, double: Double, contents: KVCache | None) -> KVCache:
    """A cache on a double, with the contents of one on the CPU."""
    made = cache(8, layout=layout)
    if contents is not None:
        for mine, layer in zip(made.layers, contents.layers, strict=True):
            mine.copy_(layer)
    made.planes = [DeviceTensor(plane, double) for plane in made.planes]
    made.layers = [made.planes[made.groups.planes[n]] for n in range(len(made.layers))]
    if len({id(plane) for plane in made.planes}) < len(made.layers):
        raise AssertionError("layers of these caches have planes of their own")
    made.tracks = made._tracks()
    return made
