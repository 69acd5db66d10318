"""Quantised checkpoints as published: each format written down plainly, one word after the other.

A method rounds a weight [N, K] and gives what a checkpoint stores of it, by what follows the name
of its module, and the float32 weight that this means.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models

Rounded: TypeAlias = tuple[dict[str, Tensor], Tensor]
Method: TypeAlias = Callable[[Tensor], Rounded]
CPU = torch.device("cpu")
PROMPT = list(range(2, 60))
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Of a model whose rows are whole groups, on two ranks too."""


def words(codes: Sequence[int], bits: int) -> list[int]:
    """Codes one after the other, lowest bits first, as signed words of 32 bits."""
    stream = sum(int(code) << (bits * at) for at, code in enumerate(codes))
    count = len(codes) * bits // 32
    found = [stream >> (32 * at) & 0xFFFFFFFF for at in range(count)]
    return [word - (1 << 32) if word >> 31 else word for word in found]


def by_column(codes: Tensor, bits: int) -> Tensor:
    """[rows, columns] to int32 [rows * bits / 32, columns]."""
    columns = [words(column, bits) for column in codes.T.tolist()]
    return torch.from_numpy(np.array(columns, dtype=np.int32)).T.contiguous()


def by_row(codes: Tensor, bits: int) -> Tensor:
    """[rows, columns] to int32 [rows, columns * bits / 32]."""
    return by_column(codes.T, bits).T.contiguous()


def on_grid(
    weight: Tensor, groups: Tensor, bits: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [N, K], scales and zeros [N, G], and what they mean [N, K]. `groups` is the group of
    every k; zeros are at least one, for there are tools that store them less one."""
    most, count = (1 << bits) - 1, int(groups.max()) + 1
    low = torch.stack([weight[:, groups == g].amin(1) for g in range(count)], 1).clamp(max=-1e-3)
    high = torch.stack([weight[:, groups == g].amax(1) for g in range(count)], 1).clamp(min=1e-3)
    if symmetric:
        scales = (torch.maximum(-low, high) / (most / 2)).to(dtype)
        zeros = torch.full_like(low, 1 << (bits - 1))
    else:
        scales = ((high - low) / most).to(dtype)
        zeros = (-low / scales.float()).round().clamp(1, most)
    wide, shift = scales.float()[:, groups], zeros[:, groups]
    codes = (weight / wide + shift).round().clamp(0, most)
    return codes.long(), scales, zeros.long(), (codes - shift) * wide


def runs(depth: int, size: int) -> Tensor:
    """The group of every k where groups are runs; -1 is one group."""
    return torch.arange(depth) // (size if size > 0 else depth)


def gptq(
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    offset: int = 1,
    dtype: torch.dtype = torch.float16,
) -> Method:
    """AutoGPTQ: codes packed along K, zeros along N and less `offset`."""

    def method(weight: Tensor) -> Rounded:
        groups = runs(weight.shape[1], group)
        if act_order:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(1))]
        codes, scales, zeros, meant = on_grid(weight, groups, bits, symmetric, dtype)
        stored = {
            "qweight": by_column(codes.T, bits),
            "qzeros": by_row(zeros.T - offset, bits),
            "scales": scales.T.contiguous(),
            "g_idx": groups.to(torch.int32),
        }
        return stored, meant

    return method


def awq(group: int = 32, dtype: torch.dtype = torch.float16) -> Method:
    """AutoAWQ's GEMM layout: eight columns in a word, the even ones first."""

    def packed(codes: Tensor) -> Tensor:
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        rows = [
            words([row[at + o] for at in range(0, len(row), 8) for o in order], 4)
            for row in codes.tolist()
        ]
        return torch.from_numpy(np.array(rows, dtype=np.int32))

    def method(weight: Tensor) -> Rounded:
        groups = runs(weight.shape[1], group)
        codes, scales, zeros, meant = on_grid(weight, groups, 4, False, dtype)
        stored = {
            "qweight": packed(codes.T),
            "qzeros": packed(zeros.T),
            "scales": scales.T.contiguous(),
        }
        return stored, meant

    return method


def packed(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, act_order: bool = False
) -> Method:
    """compressed-tensors' "pack-quantized": codes packed along K, zeros along N."""

    def method(weight: Tensor) -> Rounded:
        groups = runs(weight.shape[1], group)
        if act_order:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(2))]
        codes, scales, zeros, meant = on_grid(weight, groups, bits, symmetric, torch.bfloat16)
        stored = {
            "weight_packed": by_row(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        stored |= {} if symmetric else {"weight_zero_point": by_column(zeros, bits)}
        stored |= {"weight_g_idx": groups.to(torch.int32)} if act_order else {}
        return stored, meant

    return method


def int8(*, per_tensor: bool = False, symmetric: bool = True, static: str | None = None) -> Method:
    """compressed-tensors' "int-quantized": signed bytes with a scale per row, or one. `static` is
    the name of an input's scale."""

    def method(weight: Tensor) -> Rounded:
        whole = weight.reshape(1, -1) if per_tensor else weight
        groups = runs(whole.shape[1], -1)
        codes, scales, zeros, meant = on_grid(whole, groups, 8, symmetric, torch.bfloat16)
        stored = {"weight": (codes - 128).to(torch.int8).view_as(weight), "weight_scale": scales}
        stored |= {} if symmetric else {"weight_zero_point": (zeros - 128).to(torch.int8)}
        stored |= {static: torch.tensor([0.05])} if static else {}
        return stored, meant.view_as(weight)

    return method


def fp8(
    block: tuple[int, int] | None = None,
    *,
    scale: str = "weight_scale",
    static: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Method:
    """8-bit floats with a scale per block of a x b; (1, 0) is a row, None the tensor. `static` is
    the name of an input's scale."""

    def method(weight: Tensor) -> Rounded:
        rows, columns = weight.shape
        a, b = block or weight.shape
        b = b or columns
        scales = torch.zeros(-(-rows // a), -(-columns // b), dtype=dtype)
        codes, meant = torch.zeros(rows, columns).to(torch.float8_e4m3fn), torch.zeros_like(weight)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                here = (slice(i * a, (i + 1) * a), slice(j * b, (j + 1) * b))
                scales[i, j] = weight[here].abs().max() / 440
                codes[here] = (weight[here] / scales[i, j].float()).to(torch.float8_e4m3fn)
                meant[here] = codes[here].float() * scales[i, j].float()
        stored = {"weight": codes, scale: scales if block else scales.reshape(())}
        return stored | ({static: torch.tensor(0.05)} if static else {}), meant

    return method


def nvfp4(factor: str, *, codes: str, inverse: bool) -> Method:
    """Two 4-bit floats to a byte, an 8-bit scale for 16 of them, and the factor of all scales or,
    where it is `inverse`, one through it."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    table = torch.cat([values, -values])

    def method(weight: Tensor) -> Rounded:
        groups = weight.unflatten(1, (-1, 16))
        whole = weight.abs().max() / (6 * 448)
        scales = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
        wide = scales.float()[..., None] * whole
        nearest = (groups / wide)[..., None].sub(table).abs().argmin(-1)
        flat = nearest.flatten(1)
        stored = {
            codes: (flat[:, ::2] | flat[:, 1::2] << 4).to(torch.uint8),
            "weight_scale": scales,
            factor: (1 / whole if inverse else whole).reshape(1),
        }
        return stored, (table[nearest] * wide).flatten(1)

    return method


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = [size / 12 for size in (0, 0.0625, 8, 12, 4, 6, 2, 3)]


def four_bits(kind: str, *, nested: bool = False, block: int = 64) -> Method:
    """bitsandbytes: blocks of the flattened weight, two codes to a byte, the first in its upper
    half."""
    table = torch.tensor(NF4 if kind == "nf4" else [*FP4, *(-size for size in FP4)])

    def method(weight: Tensor) -> Rounded:
        blocks = weight.reshape(-1, block)
        largest = blocks.abs().amax(1)
        state = {"quant_type": kind, "blocksize": block, "dtype": "float32"}
        state["shape"] = list(weight.shape)
        stored = {"weight.absmax": largest, "weight.quant_map": table.clone()}
        if nested:
            offset, outer = float(largest.mean()), (largest - largest.mean()).abs().max()[None]
            steps = torch.linspace(-1, 1, 256)
            near = ((largest - offset)[:, None] / outer - steps).abs().argmin(1)
            largest = steps[near] * outer + offset
            each = outer.repeat(-(-len(largest) // 256))
            stored |= {"weight.absmax": near.to(torch.uint8), "weight.nested_absmax": each}
            stored["weight.nested_quant_map"] = steps
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
        codes = (blocks / largest[:, None])[..., None].sub(table).abs().argmin(-1)
        flat = codes.flatten()
        stored["weight"] = (flat[::2] << 4 | flat[1::2]).to(torch.uint8)[:, None]
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        stored[f"weight.quant_state.bitsandbytes__{kind}"] = text
        return stored, (table[codes] * largest[:, None]).view_as(weight)

    return method


def by_rows(codes: str, scale: str, *, most: float = 1.0, shape: tuple[int, ...] = (-1,)) -> Method:
    """Bytes and the value of a row's largest code, divided by `most` in what they mean."""

    def method(weight: Tensor) -> Rounded:
        largest = weight.abs().amax(1, keepdim=True)
        given = (largest / 127 * most).reshape(shape)
        bytes_of = (weight / largest * 127).round().to(torch.int8)
        return {codes: bytes_of, scale: given}, bytes_of * (given.reshape(-1, 1) / most)

    return method


def intx(group: int = 32) -> Method:
    """TorchAO: signed codes of four bits in bytes, zeros beside scales."""

    def method(weight: Tensor) -> Rounded:
        groups = runs(weight.shape[1], group)
        codes, scales, zeros, meant = on_grid(weight, groups, 4, False, torch.bfloat16)
        stored = {"_weight_qdata": (codes - 8).to(torch.int8), "_weight_scale": scales}
        return stored | {"_weight_zero_point": (zeros - 8).to(torch.int8)}, meant

    return method


def mxfp8() -> Method:
    """8-bit floats in blocks of 32 and the exponents of their scales."""

    def method(weight: Tensor) -> Rounded:
        groups = weight.unflatten(1, (-1, 32))
        exponents = torch.frexp(groups.abs().amax(-1) / 256).exponent
        scales = torch.ldexp(torch.ones(exponents.shape), exponents)[..., None]
        codes = (groups / scales).to(torch.float8_e4m3fn)
        stored = {"weight": codes.flatten(1), "weight_scale": (exponents + 127).to(torch.uint8)}
        return stored, (codes.float() * scales).flatten(1)

    return method


def mxfp4() -> Method:
    """4-bit floats in blocks of 32 and the exponents of their scales."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    table = torch.cat([values, -values])

    def method(weight: Tensor) -> Rounded:
        groups = weight.unflatten(1, (-1, 32))
        exponents = torch.frexp(groups.abs().amax(-1) / 4).exponent
        scales = torch.ldexp(torch.ones(exponents.shape), exponents)[..., None]
        nearest = (groups / scales)[..., None].sub(table).abs().argmin(-1)
        flat = nearest.flatten(1)
        stored = {
            "weight": (flat[:, ::2] | flat[:, 1::2] << 4).to(torch.uint8),
            "weight_scale": (exponents + 127).to(torch.uint8),
        }
        return stored, (table[nearest] * scales).flatten(1)

    return method


def marlin(group: int = 32) -> Method:
    """Marlin: a row of words for 16 inputs; of 64 outputs each of 32 threads has four words, one
    for 16 outputs, with the codes of a tensor core's fragment, the even ones first."""

    def method(weight: Tensor) -> Rounded:
        groups = runs(weight.shape[1], group)
        grid, scales, _, meant = on_grid(weight, groups, 4, True, torch.float16)
        codes, rows = grid.tolist(), []
        for k in range(0, weight.shape[1], 16):
            row = list[int]()
            for n in range(0, weight.shape[0], 64):
                for thread, tile in ((t, u) for t in range(32) for u in range(4)):
                    column = n + 16 * tile + thread // 4
                    eight = [
                        codes[column + right][k + thread % 4 * 2 + down]
                        for right in (0, 8)
                        for down in (0, 1, 8, 9)
                    ]
                    row += words(eight[::2] + eight[1::2], 4)
            rows.append(row)
        order = [i + 8 * j for i in range(8) for j in range(8)]
        if scales.shape[1] == 1:
            order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
        dealt = scales.T.reshape(-1, len(order))[:, order].reshape(scales.T.shape)
        stored = {"B": torch.tensor(rows, dtype=torch.int32), "s": dealt}
        return stored | {"workspace": torch.zeros(4, dtype=torch.int32)}, meant

    return method


def fp_quant(kind: str, size: int = 32, *, pseudo: bool = False) -> Method:
    """FP-Quant: runs of `size` inputs are rotated, then rounded to 4-bit floats. The matrix is no
    symmetric one: its columns are in another order."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)]
    order = torch.randperm(size, generator=torch.Generator().manual_seed(3))
    matrix = (torch.tensor(signs) / size**0.5)[:, order]
    scale = 3.0 if kind == "mxfp4" else 1.0
    inner = mxfp4() if kind == "mxfp4" else nvfp4("factor", codes="weight", inverse=True)

    def method(weight: Tensor) -> Rounded:
        turned = (weight.unflatten(1, (-1, size)) @ matrix).flatten(1)
        parts, meant = inner(turned * scale)
        meant = meant / scale
        stored = {
            "forward_hadamard_matrix": matrix.clone(),
            "backward_hadamard_matrix": matrix.clone(),
            "act_global_scale": torch.tensor([2.0]),
            "weight_global_scale": parts.get("factor", torch.tensor([scale])),
        }
        if pseudo:
            stored["dqweight"] = meant
        else:
            scales = parts["weight_scale"].view(torch.uint8)
            stored["scales"] = torch.nn.functional.pad(scales, (0, 4, 0, 8))
            stored["qweight"] = parts["weight"]
        return stored, (meant.unflatten(1, (-1, size)) @ matrix.T).flatten(1)

    return method


def projections(name: str) -> bool:
    """Whether a tensor is that of a projection; checkpoints leave heads and tables as they are."""
    return name.endswith("_proj.weight")


def save(
    folder: Path,
    architecture: str,
    settings: dict[str, Any],
    method: Method,
    *,
    chosen: Callable[[str], bool] = projections,
    **changes: Any,
) -> Any:
    """Save a tiny model quantised in `folder`; returns the transformers model of what it means."""
    plain = folder / "plain"
    tiny_models.save_checkpoint(plain, architecture, **changes)
    tensors = load_file(plain / "model.safetensors")
    stored = dict[str, Tensor]()
    for name, weight in list(tensors.items()):
        if not chosen(name):
            stored[name] = weight
            continue
        parts, tensors[name] = method(weight.float())
        module = name.removesuffix(".weight")
        stored |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, folder / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    oracle = type(tiny_models.tiny_model(architecture, **changes)).from_pretrained(
        plain, dtype=torch.float32
    )
    shutil.rmtree(plain)
    return oracle.eval()


def answers_alike(folder: Path, oracle: Any, driver: Any) -> LoadedModel:
    """Load the checkpoint as a worker does: the logits and the greedy tokens are the oracle's."""
    loaded = load_model(folder, BuildContext(CPU, torch.float32))
    ours = driver(loaded, 1).step({0: PROMPT})[0]
    tokens = list(PROMPT)
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT]), use_cache=False).logits[0]
        assert float((ours - expected).abs().max()) < 1e-3
        for _ in range(32):
            logits = oracle(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.argmax()))
    assert driver(loaded, 1).greedy([PROMPT], 32) == [tokens[len(PROMPT) :]]
    return loaded


def add(folder: Path, tensors: dict[str, Tensor], **fields: Any) -> None:
    """More tensors and fields of the config for a checkpoint that is there."""
    weights, config = folder / "model.safetensors", folder / "config.json"
    save_file(load_file(weights) | tensors, weights)
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
