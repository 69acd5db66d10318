"""Every kernel compiles for GPUs, which needs none: to PTX, with products on tensor cores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.worker.kernel_signatures import (
    ATTEND,
    BYTES,
    FLOAT,
    INTS,
    LATENT,
    LONGS,
    PAGED,
    PARTS,
    Compiled,
    compiled,
)

MERGE: dict[str, Any] = {
    **{"NUM_HEADS": 8, "VALUE_DIM": 64, "VALUES": 64, "SINKS": True, "SPAN": 512, "MOST": 64},
    **{"RANGED": False, "LSE": False, "WINDOWED": True, "CHUNKED": False},
}
PUT: dict[str, Any] = {"NUM_KV_HEADS": 2, "HEAD_DIM": 64, "GIVEN": False, "DIM": 64}
DRAW: dict[str, str] = {
    **dict.fromkeys(("logits", "tops", "warmth", "weights", "sums"), FLOAT),
    **dict.fromkeys(("least", "next_least"), FLOAT),
    **dict.fromkeys(("places", "tokens", "prefix", "next_prefix"), INTS),
    **dict.fromkeys(("top_k", "key_low", "key_high", "index", "wanted", "next_wanted"), LONGS),
    **dict.fromkeys(("counts", "masses", "histogram", "next_histogram"), LONGS),
    **{"top_p": "*fp64", "min_p": "*fp64", "greedy": "*i8", "finite": "*i8"},
}
"""Arguments of the sampler's launches."""
OF_TILES: dict[str, Any] = {"ROWS": 1, "TILE": 4096, "num_warps": 8}
OF_ROWS: dict[str, Any] = {"ROWS": 1, "BLOCKS": 1024, "num_warps": 8}
WORDS = {"words": INTS, "scales": "*fp16", "zeros": "*i16", "groups": INTS, "out": "*bf16"}
CODES = {"x": BYTES, "x_scales": FLOAT, "weight": BYTES, "w_scales": FLOAT, "out": "*bf16"}
CODES |= {"visits": INTS, "expert_of_block": INTS}
QUANTISE = {"x": "*bf16", "static_scale": FLOAT, "codes": BYTES, "scales": FLOAT} | dict.fromkeys(
    ("limit", "most_code", "least_scale"), "fp32"
)
GPTQ: dict[str, Any] = {"COLUMNS": 64, "INNER": 32}
NO_VISITS: dict[str, Any] = {"visits": None, "expert_of_block": None}
FP8: dict[str, Any] = {"ROWS": 16, "COLUMNS": 64, "INNER": 128, "GROUPED": False, "bias": None}


def _placed(pages: str, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Queries, keys and values of Qwen3 8B, to pages of a type."""
    given = ("heads", "cos", "sin", "query_weight", "key_weight")
    types = dict.fromkeys(given, "*bf16") | {"slots": LONGS, "pages": pages, "scales": FLOAT}
    numbers = ("query_eps", "key_eps", "inverse_most", "most_code")
    sizes = {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "DIM": 128, "PAIRS": 64}
    plain = {"REST": 1, "NORMED": True, "SCALED": True, "GIVEN": False, "num_warps": 1}
    return "heads._place", types | dict.fromkeys(numbers, "fp32"), sizes | plain | more


def _norm(width: int, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A norm of a sum."""
    given = ("x", "residual", "weight", "bias", "out", "total")
    types = dict.fromkeys(given, "*bf16") | {"eps": "fp32"}
    plain = {"SUMMED": True, "CENTERED": False, "SCALED": True, "BIASED": False}
    unused = {} if more.get("BIASED") else {"bias": None}
    return "norm._norm", types, plain | unused | {"WIDTH": width} | more


NATIVE = ("fp8._product", CODES, FP8 | NO_VISITS | {"IS_NATIVE": True})
"""What no compute capability below 8.9 has."""
_CONVOLVED = {
    **dict.fromkeys(("x", "pages", "out"), "*bf16"),
    **dict.fromkeys(("taps", "bias"), FLOAT),
    **{"slots": LONGS, "earlier": LONGS, "missing": BYTES},
}
_CHAINS = dict.fromkeys(("starts", "stops", "pages", "firsts", "begins"), LONGS)
_STATE: dict[str, Any] = {
    "snapshots": {"tokens": "*bf16", "states": FLOAT},
    "chains": _CHAINS,
    "fading": {"faded": FLOAT, "weight": FLOAT},
    "layout": dict.fromkeys(
        ("page_stride", "token_stride", "state_stride", "key_at", "value_at"), "i32"
    ),
    **{"tokens": "*bf16", "states": FLOAT},
    **dict.fromkeys(("query", "out", "strength", "decay", "read", "rates", "bias"), FLOAT),
    "scale": "fp32",
}
_FOUND = {
    **_CHAINS,
    **{"earlier": LONGS, "missing": BYTES},
    **dict.fromkeys(("query_starts", "lengths", "page_table"), INTS),
}
_HEADS: dict[str, Any] = {
    **{"PAGE_SIZE": 16, "HEADS": 80, "GROUP": 80, "KEY_DIM": 128, "VALUE_DIM": 64},
    **{"TOKENS": 16, "KEYS": 64, "VALUES": 64},
}
_CHUNKS: dict[str, Any] = {
    **{"KEYS": 128, "VALUES": 32, "NARROW": True, "PRECISION": "ieee", "LEAST": 32},
    "num_stages": 3,
}


def _chunks(tokens: int, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A scan in chunks of so many tokens, in pages as large."""
    sizes = {"PAGE_SIZE": tokens, "TOKENS": tokens, "num_warps": 8 if tokens > 32 else 4}
    types = _STATE | {"query": "*bf16"}
    return "recurrent.chunk_scan._scan", types, _HEADS | _CHUNKS | sizes | more


_SOLVED = dict.fromkeys(("write", "update", "query", "key", "scores"), "*bf16") | {"decay": FLOAT}


def _delta(
    model: str, tokens: int, **more: Any
) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Both launches of a delta net in chunks of so many tokens, in pages as large; of 32 heads."""
    sizes: dict[str, Any] = {
        **{"PAGE_SIZE": tokens, "HEADS": 32, "KEY_DIM": 128, "VALUE_DIM": 128, "TOKENS": tokens},
        **{"KEYS": 128, "PRECISION": "ieee", "LEAST": 32},
    }
    solve = {"GROUP": 2, "BY_CHANNEL": False, "LEVELS": tokens.bit_length() - 1, "VALUES": 128}
    solve |= {"NARROW": True, "num_warps": 8 if tokens > 16 else 4}
    scan = {"ALL": 128, "VALUES": 32, "num_stages": 3}
    types, path = _STATE | {"solved": _SOLVED}, "recurrent.delta_chunks."
    return {
        f"{model}, {tokens} tokens solved": (path + "_solve", types, sizes | solve | more),
        f"{model}, chunks of {tokens} tokens": (path + "_scan", types, sizes | scan),
    }


STATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Mamba-2 2.7B, pages of a step": (
        "recurrent.chains._find",
        _FOUND,
        {"PAGE_SIZE": 16, "TAPS": 4, "AT_ONCE": 64, "num_warps": 1},
    ),
    **_delta("Qwen3-Next 80B-A3B", 16),
    **_delta("Qwen3-Next 80B-A3B", 32),
    **_delta("Kimi Linear 48B-A3B", 16, GROUP=1, BY_CHANNEL=True),
    **_delta("Kimi Linear 48B-A3B", 32, GROUP=1, BY_CHANNEL=True),
    "Mamba-2 2.7B, states of pages": ("recurrent.ssm_states._carry", _STATE, _HEADS),
    "Mamba-2 2.7B, outputs": ("recurrent.ssm_states._read", _STATE, _HEADS | {"CHOSEN": False}),
    "Mamba-2 2.7B, outputs beside a prompt": (
        "recurrent.ssm_states._read",
        _STATE,
        _HEADS | {"CHOSEN": True},
    ),
    "Mamba-2 2.7B, chunks of 16 tokens": _chunks(16),
    "Mamba-2 2.7B, chunks of 64 tokens": _chunks(64),
    "MiniMax-01, chunks of 64 tokens": _chunks(64, HEADS=64, GROUP=1, VALUE_DIM=128),
    "Mamba-2 2.7B, inputs of the convolution": (
        "recurrent.convolution._keep",
        _CONVOLVED,
        {"WIDTH": 1024},
    ),
    "Mamba-2 2.7B, convolution": (
        "recurrent.convolution._convolve",
        _CONVOLVED,
        {
            **{"CHANNELS": 5376, "TAIL": 80, "FIRST": 128, "AT": 5376, "TAPS": 4},
            **{"BIASED": True, "MASKED": True, "SILU": True, "WIDTH": 1024},
        },
    ),
    "Qwen3-Next 80B-A3B, delta rule": (
        "recurrent.delta._walk",
        _STATE,
        {
            **{"PAGE_SIZE": 16, "HEADS": 32, "GROUP": 2, "KEY_DIM": 128, "VALUE_DIM": 128},
            **{"BY_CHANNEL": False, "KEYS": 128, "VALUES": 8, "num_warps": 1},
        },
    ),
    "Falcon Mamba 7B, scan": (
        "recurrent.scan._walk",
        _STATE,
        {
            **{"PAGE_SIZE": 16, "STATES": 16, "CHANNELS": 8192, "KEYS": 16, "WIDTH": 64},
            "num_warps": 1,
        },
    ),
}
KERNELS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("attention.tile.attend", PAGED | {"query": "*bf16", "pages": "*bf16"}, ATTEND | {"CODES": 0}),
    ("attention.tile.attend", PAGED | {"query": "*bf16", "pages": BYTES}, ATTEND | {"CODES": 2}),
    (
        "attention.tile.attend",
        PAGED | {"query": "*bf16", "pages": "*bf16"},
        ATTEND | PARTS | {"CODES": 0},
    ),
    *(
        (
            "attention.tile.attend",
            PAGED | {"query": type, "pages": type, "out": type},
            ATTEND | LATENT | {"ROWS": rows, "KEYS": keys},
        )
        for type, keys in (("*bf16", 32), ("*fp32", 16))
        for rows in (16, 32)
    ),
    ("attention.tile.merge", PAGED, MERGE),
    ("attention.tile.merge", PAGED, MERGE | {"RANGED": True, "LSE": True}),
    _norm(1024, CENTERED=True, SCALED=True, BIASED=True),
    *STATES.values(),
    (
        "gated_norm._gated_norm",
        {"x": FLOAT, "gate": "*bf16", "weight": "*bf16", "out": "*bf16", "eps": "fp32"},
        {"GROUPS": 1, "GATE_FIRST": True, "SHARED": False, "SILU": True, "WIDTH": 8192}
        | {"num_warps": 16},
    ),
    _placed("*bf16", CODES=0),
    _placed(BYTES, CODES=2),
    ("gated._gated", {"both": "*bf16", "out": "*bf16"}, {"GATE": 2, "WIDTH": 1024}),
    (
        "rope._rotate",
        dict.fromkeys(("heads", "cos", "sin"), "*bf16"),
        {"DIM": 64, "INTERLEAVED": False, "HEADS": 8, "PAIRS": 32},
    ),
    *(
        (
            "kv_write._put",
            {
                **{"rows": "*bf16", "slots": LONGS, "pages": BYTES if code else "*bf16"},
                **{"scales": FLOAT, "inverse_most": "fp32", "most_code": "fp32"},
            },
            PUT | {"CODES": code},
        )
        for code in (0, 1, 2)
    ),
    (
        "top_k._top_k",
        {
            **{"logits": FLOAT, "weights": FLOAT, "experts": LONGS},
            **{"floor": "fp32", "factor": "fp32"},
        },
        {
            **{"NUM_EXPERTS": 60, "COUNT": 4, "TOKENS": 4, "WIDTH": 64},
            **{"NORMED": True, "SLOTS": 4},
        },
    ),
    *(
        ("gptq._product", WORDS | {"x": "*bf16"}, {"BITS": bits, "ROWS": 16} | GPTQ)
        for bits in (3, 4)
    ),
    (
        "align._align",
        {"experts": LONGS, "rows": INTS, "owners": INTS},
        {"EXPERTS": 256, "VISITS": 1024, "BLOCK": 16},
    ),
    (
        "moe._combine",
        {"returned": "*bf16", "experts": LONGS, "weights": FLOAT, "out": "*bf16"},
        {"SLOTS": 8, "WIDTH": 1024},
    ),
    (
        "grouped._dequantise",
        {"words": INTS, "scales": "*fp16", "zeros": BYTES, "out": "*bf16"},
        {"VALUES": 1, "SCALES": 0, "BITS": 4, "COLUMNS": 64, "TILE": 128, "factors": None},
    ),
    ("grouped._sum", {"parts": FLOAT, "bias": "*bf16", "out": "*bf16"}, {"WIDTH": 1024}),
    ("gptq._dequantise", WORDS, {"BITS": 8} | GPTQ),
    ("fp8._product", CODES, FP8 | NO_VISITS | {"IS_NATIVE": False}),
    (
        "fp8._quantise",
        QUANTISE,
        {"WIDTH": 128, "IS_STATIC": False, "num_warps": 1},
    ),
]


def _attention(
    heads: int, kv_heads: int, width: int, rows: int, keys: int = 128, **more: Any
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A launch of `attention.launch.attend` over pages of bfloat16, or of codes."""
    pages = BYTES if more.get("CODES") else "*bf16"
    sizes = {"NUM_HEADS": heads, "GROUP": heads // kv_heads, "SHARED": heads // kv_heads}
    widths = dict.fromkeys(("HEAD_DIM", "DIM", "VALUE_DIM", "VALUES"), width)
    plain = {"SINKS": False, "WINDOWED": False, "CODES": 0, "ROWS": rows, "KEYS": keys}
    plain |= {
        "num_warps": 8 if rows >= 128 or width > 128 else 4,
        "UNMASKED": not more.get("WINDOWED"),
    }
    types = PAGED | {"query": "*bf16", "pages": pages}
    return "attention.tile.attend", types, ATTEND | sizes | widths | plain | more


def _quantised(width: int, warps: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A launch of `fp8.quantise`."""
    return "fp8._quantise", QUANTISE, {"WIDTH": width, "IS_STATIC": False, "num_warps": warps}


_WORDS = {"words": INTS, "bias": "*bf16", "visits": INTS, "expert_of_block": INTS}
_FORMATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "integer": ({"scales": "*fp16", "zeros": BYTES}, {"VALUES": 1, "SCALES": 0}),
    "mxfp4": ({"scales": BYTES}, {"VALUES": 2, "SCALES": 1, "FOLDED": True}),
    "nvfp4": ({"scales": BYTES, "factors": FLOAT}, {"VALUES": 2, "SCALES": 2, "FOLDED": True}),
    "fp8": (
        {"scales": FLOAT, "x_scales": FLOAT},
        {"VALUES": 3, "SCALES": 0, "BITS": 8, "SLICES": 4},
    ),
    "float": ({"words": "*bf16"}, {"VALUES": 0, "SCALES": 0, "BITS": 32, "SLICES": 1, "TILE": 64}),
}


def _grouped(format: str, rows: int, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A launch of `grouped.product`, `SPLIT` ones of linear layers. Weights in codes are the left
    operand of tiles of 64 rows and more, as in `product_tiles`."""
    types, constants = _FORMATS[format]
    split = more.get("SPLIT", False)
    sizes = {"BITS": 4, "SLICES": 8, "TILE": 128, "COLUMNS": 64, "num_stages": 4}
    plain = {"FOLDED": False, "GROUPED": not split, "SPLIT": split, "GATE": None, "ROWS": rows}
    plain["LEFT"] = rows >= 64 and format != "float"
    given = _WORDS | types | {"x": "*bf16", "out": FLOAT if split else "*bf16"}
    unused = dict.fromkeys({"x_scales", "scales", "zeros", "factors"} - types.keys())
    if not (sizes | plain | more)["GROUPED"]:
        unused |= NO_VISITS
    return "grouped._product", given, sizes | plain | constants | unused | more


def _codes(rows: int, columns: int, **more: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A launch of `fp8.grouped` on tensor cores that take codes."""
    sizes = {"ROWS": rows, "COLUMNS": columns, "IS_NATIVE": True, "num_stages": 4}
    visits = {} if more.get("GROUPED") else NO_VISITS
    return "fp8._product", CODES, FP8 | sizes | visits | more


WIDE: dict[str, Any] = {"COLUMNS": 128, "num_warps": 8, "GROUPED": False}
_LONE: dict[str, Any] = {"GATE": 1, "COLUMNS": 32, "visits": None}
_OF_VISITS: dict[str, Any] = {"COLUMNS": 128, "num_warps": 8, "num_stages": 3}
_DEEPSEEK = LATENT | {"SINKS": False, "KEYS": 32}
_SHORT = {"query": "*bf16", "pages": "*bf16"}
SHAPES = {
    "Llama 3 8B, decode": _attention(32, 8, 128, 16),
    "Llama 3 8B, prompt": _attention(32, 8, 128, 128),
    "Llama 3 8B, decode on 8.9": _attention(32, 8, 128, 16, 64),
    "Llama 3 8B, prompt on 8.9": _attention(32, 8, 128, 64, 64),
    "Llama 3 8B, exact": _attention(32, 8, 128, 64, 64, EXACT=True, MOST=0, num_warps=8),
    "Qwen3 30B-A3B, decode": _attention(32, 4, 128, 16),
    "Gemma 3 4B, decode": _attention(8, 4, 256, 16, 32, WINDOWED=True),
    "Gemma 3 4B, prompt": _attention(8, 4, 256, 64, 32, WINDOWED=True),
    "gpt-oss, decode": _attention(64, 8, 64, 16, SINKS=True, WINDOWED=True),
    "gpt-oss, prompt": _attention(64, 8, 64, 128, SINKS=True, WINDOWED=True),
    "DeepSeek-V3, decode": (
        "attention.tile.attend",
        PAGED | _SHORT,
        ATTEND | _DEEPSEEK | {"ROWS": 16},
    ),
    "DeepSeek-V3, prompt": (
        "attention.tile.attend",
        PAGED | _SHORT,
        ATTEND | _DEEPSEEK | {"ROWS": 32},
    ),
    "Llama 3 8B, maxima of tiles": ("sampling._tops", DRAW, OF_TILES),
    "Llama 3 8B, weights": ("sampling._weigh", DRAW, OF_TILES | {"TILES": 32}),
    "Llama 3 8B, a digit of top-k": ("radix_select.narrow", DRAW, OF_TILES),
    "Llama 3 8B, truncation": ("sampling._cut", DRAW, OF_TILES),
    "Llama 3 8B, mass of a nucleus": ("sampling._reach", DRAW, OF_ROWS),
    "Llama 3 8B, draw": ("sampling._pick", DRAW, OF_ROWS),
    "Llama 3 8B, inputs as 8-bit floats": _quantised(4096, 16),
    "Llama 3 8B, inputs of down as 8-bit floats": _quantised(16384, 16),
    "DeepSeek-V3, inputs as 8-bit floats": _quantised(128, 1),
    "Llama 3 8B int4, decode": _grouped("integer", 16, SPLIT=True),
    "Llama 3 8B int4, groups of 32, decode": _grouped("integer", 16, SPLIT=True, SLICES=2),
    "Llama 3 8B int4, 64 rows": _grouped("integer", 64, SPLIT=True),
    "Llama 3 8B int4, 64 rows, the other way": _grouped("integer", 64, SPLIT=True, LEFT=False),
    "Llama 3 8B int4, 64 rows, two groups of warps": _grouped(
        "integer", 64, SPLIT=True, COLUMNS=128, num_warps=8
    ),
    "Llama 3 8B int4, prompt": _grouped("integer", 128, **WIDE),
    "Llama 3 8B int4, prompt, the other way": _grouped("integer", 128, LEFT=False, **WIDE),
    "gpt-oss mxfp4, 128 rows": _grouped("mxfp4", 128, **WIDE),
    "Qwen3 30B-A3B int4, prompt": _grouped("integer", 64, COLUMNS=128),
    "gpt-oss mxfp4, decode": _grouped("mxfp4", 16),
    "gpt-oss mxfp4, prompt": _grouped("mxfp4", 64, COLUMNS=128),
    "gpt-oss mxfp4, long prompt": _grouped("mxfp4", 128, **_OF_VISITS),
    "DeepSeek-V3 nvfp4, decode": _grouped("nvfp4", 16),
    "DeepSeek-V3 fp8, decode": _grouped("fp8", 16),
    "DeepSeek-V3 fp8, prompt": _grouped("fp8", 64),
    "DeepSeek-V3 native fp8, decode": _codes(16, 64, GROUPED=True),
    "DeepSeek-V3 native fp8, prompt": _codes(64, 128, GROUPED=True),
    "Llama 3 8B native fp8, prompt": _codes(64, 128),
    "Qwen3 30B-A3B, experts of a decode step": _grouped("float", 16),
    "Qwen3 30B-A3B, gated experts of one token": _grouped("float", 16, **_LONE),
    "Qwen3 30B-A3B int4, gated experts of one token": _grouped("integer", 16, **_LONE),
    "Qwen3 30B-A3B, experts of a prompt": _grouped("float", 64),
    "Qwen3 30B-A3B, experts of a long prompt": _grouped("float", 128, **_OF_VISITS),
    **STATES,
    "Llama 3 8B, residual and norm": _norm(4096, num_warps=16),
    "Llama 3 8B over FP8 pages, decode": _attention(32, 8, 128, 16, 64, CODES=2),
    "Llama 3 8B over FP8 pages, prompt": _attention(32, 8, 128, 64, 64, CODES=2),
}
_OLDER = ("Llama 3 8B int4, decode", "gpt-oss mxfp4, 128 rows", "DeepSeek-V3 fp8, prompt")
OLDER = [
    (path, types, sizes | {"LEFT": False})
    for path, types, sizes in (SHAPES[name] for name in _OLDER)
]
"""What GPUs without products of 8-bit floats multiply too."""
CHANGING = {
    "attention.tile.attend": {"num_rows", "table_width", "num_partitions", "at_least", "at_most"},
    "attention.tile.merge": {"num_partitions"},
    "sampling._tops": {"num_rows"},
    "sampling._weigh": {"num_rows", "has_top_k", "has_top_p"},
    "radix_select.narrow": {"num_rows", "shift", "counted"},
    "sampling._cut": {"num_rows"},
    "sampling._reach": {"num_rows"},
    "sampling._pick": {"num_rows"},
    "gptq._product": {"rows"},
    "fp8._product": {"rows"},
    "grouped._product": {"rows", "first_tiles"},
    "grouped._sum": {"count", "splits"},
    "align._align": {"num_visits", "num_blocks"},
    "fp8._quantise": {"tokens", "scale_token", "scale_group"},
    "top_k._top_k": {"num_tokens"},
    "recurrent.chains._find": {"table_width", "num_tokens"},
    "recurrent.convolution._convolve": {"num_tokens"},
    "recurrent.ssm_states._carry": {"at_most"},
    "recurrent.ssm_states._read": {"num_rows", "at_most"},
    "recurrent.delta._walk": {"at_most"},
    "recurrent.delta_chunks._solve": {"num_rows"},
}
"""What differs from step to step."""
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes that one program may have."""
_AXES = ("ROWS", "KEYS", "COLUMNS")
LEAST_SHARED_MEMORY = 99 * 1024
"""The same of compute capability 8.9 and 12.0."""


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    """All kernels and launch shapes for compute capability 9.0, in one process."""
    return compiled([*KERNELS, NATIVE, *SHAPES.values()], 90, tmp_path_factory.mktemp("cache"))


def check(made: list[Compiled], kernels: list[Any], architecture: int) -> None:
    assert [kernel.path for kernel in made] == [path for path, *_ in kernels]
    products = [types["query"] != FLOAT for path, types, _ in kernels if path.endswith(".attend")]
    assert [kernel.products for kernel in made if kernel.path.endswith(".attend")] == products
    assert max(kernel.shared for kernel in made) <= SHARED_MEMORY[architecture]


@pytest.mark.slow
def test_every_kernel_compiles_for_ampere(tmp_path: Path) -> None:
    check(compiled([*KERNELS, *OLDER], 80, tmp_path), [*KERNELS, *OLDER], 80)


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper(hopper: list[Compiled]) -> None:
    check(hopper, [*KERNELS, NATIVE, *SHAPES.values()], 90)


@pytest.mark.slow
def test_real_launch_shapes_spill_nothing_and_prompts_use_groups_of_warps(
    hopper: list[Compiled],
) -> None:
    made = dict(zip(SHAPES, hopper[-len(SHAPES) :], strict=True))
    # A loop counter that is put aside once costs nothing; tiles that do not fit cost hundreds.
    assert {name: kernel.spilled for name, kernel in made.items() if kernel.spilled > 8} == {}
    packed = [name for name in SHAPES if re.search("int4|fp4|V3 fp8|native", name)]
    # Next to each other: a tile is read while the one before it is multiplied.
    assert len(packed) == 19 and all(made[name].wide_copies >= 4 for name in packed)
    left = [name for name, (_, _, sizes) in SHAPES.items() if sizes.get("LEFT")]
    assert len(left) == 8 and all(made[name].from_registers for name in left)
    assert {name for name in SHAPES if made[name].float8} == {
        "DeepSeek-V3 native fp8, prompt",
        "Llama 3 8B native fp8, prompt",
    }
    coded = [name for name in SHAPES if "FP8 pages" in name]
    # Rows of codes begin at multiples of 16 bytes, see `kv_codes.ALIGNMENT`.
    assert len(coded) == 2 and all(made[name].wide_copies >= 4 for name in coded)
    # Tiles of 128 are for devices that have room, see `triton.has_room`.
    tiles = {name: {sizes.get(axis) for axis in _AXES} for name, (_, _, sizes) in SHAPES.items()}
    narrow = {name: made[name].shared for name in SHAPES if 128 not in tiles[name]}
    assert len(narrow) > 20 and max(narrow.values()) <= LEAST_SHARED_MEMORY, narrow
    prompts = [name for name, (_, _, sizes) in SHAPES.items() if sizes.get("ROWS", 0) >= 64]
    prompts += [name for name in SHAPES if "chunks of" in name]
    assert len(prompts) >= 8 and all(made[name].wgmma for name in prompts)


@pytest.mark.slow
def test_counts_of_a_step_are_compiled_once(hopper: list[Compiled]) -> None:
    """A 1 and a multiple of 16 would be kernels of their own, compiled while streams wait."""
    for kernel in hopper:
        assert set(kernel.unspecialised) == CHANGING.get(kernel.path, set()), kernel.path
