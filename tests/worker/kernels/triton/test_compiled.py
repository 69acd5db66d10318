"""Every kernel compiles for GPUs, which needs none: to PTX, with products on tensor cores.

In a process of its own, because whether a function is interpreted is settled when it is defined.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FLOAT, INTS, LONGS, BYTES = "*fp32", "*i32", "*i64", "*u8"
PAGED = {
    "sinks": FLOAT,
    "slopes": FLOAT,
    "page_table": INTS,
    "lengths": INTS,
    "query_starts": INTS,
    "places": INTS,
    "ranges": INTS,
    "ancestors": LONGS,
    "depths": INTS,
    "lse": FLOAT,
    "out": "*bf16",
    "sums": FLOAT,
    "states": FLOAT,
    "scale": "fp32",
    "softcap": "fp32",
}
ATTEND: dict[str, Any] = {
    **{"NUM_HEADS": 8, "GROUP": 4, "SHARED": 4, "HEAD_DIM": 64, "DIM": 64, "PAGE_SIZE": 16},
    **{"SINKS": True, "LATENT": False, "REST": 0},
    **{"CAPPED": False, "SLOPED": False, "WINDOWED": True, "CHUNKED": False},
    **{"VALUE_DIM": 64, "VALUES": 64, "RANGED": False, "TREE": False, "LSE": False},
    **{"ROWS": 16, "KEYS": 32, "SPAN": 512},
}
PARTS: dict[str, Any] = {"VALUE_DIM": 40, "RANGED": True, "TREE": True, "LSE": True}
LATENT: dict[str, Any] = {
    **{"NUM_HEADS": 128, "GROUP": 128, "SHARED": 16, "HEAD_DIM": 576, "DIM": 512, "CODES": 0},
    **{"VALUE_DIM": 512, "VALUES": 512, "LATENT": True, "REST": 64, "WINDOWED": False},
}
"""DeepSeek-V3; in decode steps and in prompts."""
MERGE: dict[str, Any] = {
    **{"NUM_HEADS": 8, "VALUE_DIM": 64, "VALUES": 64, "SINKS": True, "SPAN": 512},
    **{"RANGED": False, "LSE": False},
}
PUT: dict[str, Any] = {"NUM_KV_HEADS": 2, "HEAD_DIM": 64, "GIVEN": False, "DIM": 64}
SAMPLE: dict[str, Any] = {"ROWS": 1, "TILE": 1024}
WORDS = {"words": INTS, "scales": "*fp16", "zeros": "*i16", "groups": INTS, "out": "*bf16"}
CODES = {"x": BYTES, "x_scales": FLOAT, "weight": BYTES, "w_scales": FLOAT, "out": "*bf16"}
GPTQ: dict[str, Any] = {"COLUMNS": 64, "INNER": 32}
FP8: dict[str, Any] = {"ROWS": 16, "COLUMNS": 64, "INNER": 128}
NATIVE = ("fp8._product", CODES, FP8 | {"IS_NATIVE": True})
"""What no compute capability below 8.9 has."""
KERNELS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("attention._attend", PAGED | {"query": "*bf16", "pages": "*bf16"}, ATTEND | {"CODES": 0}),
    ("attention._attend", PAGED | {"query": "*bf16", "pages": BYTES}, ATTEND | {"CODES": 2}),
    (
        "attention._attend",
        PAGED | {"query": "*bf16", "pages": "*bf16"},
        ATTEND | PARTS | {"CODES": 0},
    ),
    *(
        (
            "attention._attend",
            PAGED | {"query": type, "pages": type, "out": type},
            ATTEND | LATENT | {"ROWS": rows, "KEYS": keys},
        )
        for type, keys in (("*bf16", 32), ("*fp32", 16))
        for rows in (16, 32)
    ),
    ("attention._merge", PAGED, MERGE),
    ("attention._merge", PAGED, MERGE | {"RANGED": True, "LSE": True}),
    (
        "norm._rms_norm",
        dict.fromkeys(("x", "residual", "weight", "out", "total"), "*bf16") | {"eps": "fp32"},
        {"SUMMED": True, "SCALED": True, "WIDTH": 1024},
    ),
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
        {"logits": FLOAT, "weights": FLOAT, "experts": LONGS},
        {"NUM_EXPERTS": 60, "COUNT": 4, "TOKENS": 4, "WIDTH": 64},
    ),
    (
        "sampling._weigh",
        {"logits": FLOAT, "warmth": FLOAT, "weights": FLOAT, "tokens": INTS},
        SAMPLE,
    ),
    *(
        ("gptq._product", WORDS | {"x": "*bf16"}, {"BITS": bits, "ROWS": 16} | GPTQ)
        for bits in (3, 4)
    ),
    ("gptq._dequantise", WORDS, {"BITS": 8} | GPTQ),
    ("fp8._product", CODES, FP8 | {"IS_NATIVE": False}),
    (
        "sampling._choose",
        {
            **{"weights": FLOAT, "key_low": LONGS, "key_high": LONGS, "index": LONGS},
            **{"top_k": LONGS, "top_p": "*fp64", "min_p": "*fp64", "greedy": "*i8"},
            "tokens": INTS,
        },
        SAMPLE,
    ),
]
COMPILE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for path, types, constants in json.loads(sys.argv[1]):
    module, kernel = path.split(".")
    kernel = getattr(importlib.import_module(f"baton_worker.kernels.triton.{module}"), kernel)
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    target = GPUTarget("cuda", int(sys.argv[2]), 32)
    options = {"num_warps": 8 if constants.get("VALUES", 0) > 128 else 4, "num_stages": 2}
    made = triton.compile(source, target=target, options=options)
    print(path, "mma" in made.asm["ptx"], made.metadata.shared)
"""
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes that one program may have."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
def test_every_kernel_compiles_for_a_gpu(architecture: int, tmp_path: Path) -> None:
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    kernels = [*KERNELS, NATIVE] if architecture >= 89 else KERNELS
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(kernels), str(architecture)],
        env=given | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [name for name, *_ in kernels]
    products = [types["query"] != FLOAT for name, types, _ in KERNELS if name.endswith("_attend")]
    assert [line.split()[1] == "True" for line in lines if "_attend" in line] == products
    assert max(int(line.split()[2]) for line in lines) <= SHARED_MEMORY[architecture]
