"""Argument types and tile sizes of the Triton kernels, and their compilation without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from baton_worker.config import Config

FLOAT, INTS, LONGS, BYTES = "*fp32", "*i32", "*i64", "*u8"
PAGED = {
    "sinks": FLOAT,
    "slopes": FLOAT,
    "page_table": INTS,
    "lengths": INTS,
    "query_starts": INTS,
    "split_starts": INTS,
    "ranges": INTS,
    "ancestors": LONGS,
    "last_keys": "*i32",
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
    **{
        "VALUE_DIM": 64,
        "VALUES": 64,
        "RANGED": False,
        "TREE": False,
        "SPANS": False,
        "LSE": False,
        "EXACT": False,
    },
    **{"ROWS": 16, "KEYS": 32, "SPAN": 512, "MOST": 64, "UNMASKED": False},
}
PARTS: dict[str, Any] = {"VALUE_DIM": 40, "RANGED": True, "TREE": True, "SPANS": True, "LSE": True}
LATENT: dict[str, Any] = {
    **{"NUM_HEADS": 128, "GROUP": 128, "SHARED": 16, "HEAD_DIM": 576, "DIM": 512, "CODES": 0},
    **{"VALUE_DIM": 512, "VALUES": 512, "LATENT": True, "REST": 64, "WINDOWED": False},
}
"""DeepSeek-V3; in decode steps and in prompts."""


class Compiled(NamedTuple):
    """What a kernel became."""

    path: str
    products: bool
    """Whether tensor cores multiply."""
    wgmma: bool
    """Whether a group of warps does, as on compute capability 9.0."""
    from_registers: bool
    """Whether the left operands of all of these products are in registers."""
    float8: bool
    """Whether they multiply 8-bit floats as they are."""
    shared: int
    """Bytes of shared memory of one program."""
    spilled: int
    """Bytes that a thread puts into memory for want of registers."""
    wide_copies: int
    """Instructions that copy 16 bytes while the program computes."""
    unspecialised: tuple[str, ...]
    """Arguments of which every value is served by the same machine code."""


_COMPILE = """
import hashlib, importlib, json, os, re, subprocess, sys, tempfile
from collections import namedtuple
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas
from triton.compiler import ASTSource
number, folder = int(sys.argv[2]), Path(sys.argv[3])
compilers = [triton.__version__, get_ptxas(number).version, sys.orig_argv[2]]
said = []
def make_cubin(backend, ptx, metadata, options, capability):
    # Triton's own discards what ptxas says of registers.
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        suffix = "a" if number == 90 else ""
        command = [get_ptxas(number).path, f"--gpu-name=sm_{number}{suffix}", "-v", file.name]
        done = subprocess.run([*command, "-o", "/dev/null"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    return b"machine code that nothing runs"
CUDABackend.make_cubin = make_cubin
def tupled(type):
    # Of an argument that has fields, as Triton makes it of a NamedTuple.
    return namedtuple("Fields", type)(*type.values()) if isinstance(type, dict) else type
def leaves(types, path=()):
    for i, (name, type) in enumerate(types.items()):
        at = (*path, i)
        yield from leaves(type, at) if isinstance(type, dict) else [(name, at, type)]
for path, types, constants in json.loads(sys.argv[1]):
    module, kernel = path.rsplit(".", 1)
    kernel = getattr(importlib.import_module(f"baton_worker.kernels.triton.{module}"), kernel)
    warps, stages = constants.pop("num_warps", 0), constants.pop("num_stages", 2)
    types |= dict.fromkeys(constants, "constexpr")
    types = {name: types.get(name, "i32") for name in kernel.arg_names}
    signature = {name: tupled(type) for name, type in types.items()}
    # Rows begin at multiples of 16 bytes, and strides are multiples of 16; rows of packed weights.
    widths = ("columns", "inner") if path.startswith(("grouped", "fp8._product")) else ()
    attrs = {
        at: [["tt.divisibility", 16]]
        for name, at, type in leaves(types)
        if type[0] == "*" or "stride" in name or name in widths
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attrs)
    wide = constants.get("VALUES", 0) > 128 or constants.get("EXACT", False)
    options = {"num_warps": warps or (8 if wide else 4), "num_stages": stages}
    made_of = [kernel.cache_key, number, types, constants, [*attrs], options, compilers]
    digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    kept = folder / f"{digest}.json"
    if not kept.is_file():
        made = triton.compile(source, target=GPUTarget("cuda", number, 32), options=options)
        ptx = made.asm["ptx"]
        spilled = sum(map(int, re.findall(r"(\\d+) bytes spill stores", said.pop())))
        copies = len(re.findall(r"cp\\.async\\.cg.* 0x10", ptx))
        # Of both operands in shared memory there are two addresses, and no other registers.
        groups = re.findall(r"wgmma\\.mma_async[^{]*{[^}]*},([^;]*);", ptx)
        in_registers = bool(groups) and all("{" in operands for operands in groups)
        products = "mma" in ptx, "wgmma" in ptx, in_registers, "e4m3.e4m3" in ptx
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps([*products, made.metadata.shared, spilled, copies]))
        part.replace(kept)
    free = [p.name for p in kernel.params if p.do_not_specialize]
    found = [path, *json.loads(kept.read_text()), free]
    print(json.dumps(found))
"""


def compiled(
    kernels: list[tuple[str, dict[str, Any], dict[str, Any]]], architecture: int, cache: Path
) -> list[Compiled]:
    """Compile kernels, given as "module.function", types and constants (`num_warps` and
    `num_stages` among them, if they are not 4 and 2), for a compute capability (90 is 9.0).

    Equal ones are compiled once, and not again by later runs of the tests: what they became is kept
    in the user's cache, by kernel, types, constants and compilers. In a process of its own, because
    whether a function is interpreted is settled when it is defined."""
    kept = Config.load().cache_dir / "compiled-kernels"
    kept.mkdir(parents=True, exist_ok=True)
    names = [json.dumps(kernel, sort_keys=True) for kernel in kernels]
    once = dict(zip(names, kernels, strict=True))
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _COMPILE,
            json.dumps([*once.values()]),
            str(architecture),
            str(kept),
        ],
        env=given | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = map(json.loads, done.stdout.splitlines())
    made = {
        name: Compiled(*fields[:-1], tuple(fields[-1]))
        for name, fields in zip(once, lines, strict=True)
    }
    return [made[name] for name in names]
