"""Layers finish as soon as they can, and a model is never in memory twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from baton_worker.checkpoint.fill import WeightFiller
from baton_worker.layers.layer import Layer

HIDDEN, WIDE, KEYS, VOCAB, LAYERS = 512, 2048, 128, 4000, 18
MOST = 1.15
"""Times the weights that a worker then holds."""
ROWS = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDE, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}
OUTER = {"model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (VOCAB, HIDDEN)}


class Part(Layer):
    """A layer of some tensors that notes when it finishes."""

    def __init__(self, finished: list[str], name: str, *waits: str) -> None:
        super().__init__()
        self._name, self._waits, self._finished = name, waits, finished

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        if not self._waits:
            yield from ((f"{self._name}.{part}", torch.ones(2)) for part in ("a", "b"))

    def awaited_weights(self) -> Iterator[str]:
        yield from self._waits or (name for name, _ in self.weight_targets())

    def process_weights_after_loading(self) -> None:
        self._finished.append(self._name)


def test_a_layer_finishes_once_it_is_complete() -> None:
    finished: list[str] = []
    layers = [Part(finished, "x"), Part(finished, "y"), Part(finished, "tied", "x.b")]
    wanted = dict(pair for layer in layers for pair in layer.weight_targets())
    filling = WeightFiller(layers, dict(wanted))
    filling.done("x.a")
    filling.done("y.b")
    assert not finished and filling.wanted.keys() == wanted.keys()
    filling.done("x.b")
    assert finished == ["x", "tied"] and filling.wanted.keys() == {"y.a", "y.b"}
    assert filling.missing == {"y.a"}
    filling.done("y.a")
    filling.end()
    assert finished == ["x", "tied", "y"] and not filling.missing and not filling.wanted


def test_what_waits_for_nothing_finishes_at_the_end() -> None:
    class Bare(Part):
        def awaited_weights(self) -> Iterator[str]:
            return iter(())

    finished: list[str] = []
    filling = WeightFiller([Bare(finished, "x")], {})
    assert not finished
    filling.end()
    assert finished == ["x"]


def config(layers: int, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "rope_theta": 1e4,
        "tie_word_embeddings": tied,
    }


def save(folder: Path, dtype: torch.dtype, *, tied: bool) -> Path:
    """A Llama of about 280 MB."""
    layers = LAYERS * 4 // dtype.itemsize
    shapes = {f"model.layers.{i}.{n}": s for i in range(layers) for n, s in ROWS.items()} | OUTER
    if tied:
        del shapes["lm_head"]
    save_file(
        {f"{n}.weight": torch.zeros(s, dtype=dtype) for n, s in shapes.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config(layers, tied)))
    return folder


def measure(path: Path, dtype: str, quantize: str = "none") -> tuple[int, int]:
    """Peak while loading, and the bytes of the weights, in a process of its own."""
    command = [sys.executable, "-m", "tests.support.peak_memory", str(path), dtype, quantize]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, weights = map(int, done.stdout.split())
    return peak, weights


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tied"), [("float32", False), ("bfloat16", False), ("bfloat16", True)]
)
def test_loading_takes_little_more_than_the_weights(dtype: str, tied: bool, tmp_path: Path) -> None:
    peak, weights = measure(save(tmp_path, getattr(torch, dtype), tied=tied), dtype)
    assert weights > 190e6
    assert peak < MOST * weights


@linux
@pytest.mark.slow
@pytest.mark.parametrize(("quantize", "tied"), [("int8", False), ("int4", False), ("int4", True)])
def test_rounding_takes_little_more_than_the_weights(
    quantize: str, tied: bool, tmp_path: Path
) -> None:
    """What is rounded is read as it is stored, one layer at a time, and never all of it."""
    peak, weights = measure(save(tmp_path, torch.bfloat16, tied=tied), "bfloat16", quantize)
    assert weights < 165e6
    assert peak < MOST * weights


@linux
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_gguf_takes_little_more_than_the_weights(kind: str, tmp_path: Path) -> None:
    """Blocks, and floats of which no block is made, are both read a few rows at a time."""
    peak, weights = measure(write_gguf(tmp_path / "x.gguf", 2 * LAYERS, kind), "bfloat16")
    assert weights > 140e6
    assert peak < MOST * weights


def write_gguf(path: Path, layers: int, kind: str) -> Path:
    """A Llama whose matrices are of a GGUF type."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_block_count(layers)
    writer.add_head_count(16)
    writer.add_head_count_kv(4)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    shapes = {f"model.layers.{i}.{n}": s for i in range(layers) for n, s in ROWS.items()} | OUTER
    stored_as = gguf.GGMLQuantizationType[kind]
    matrices = {
        shape: gguf.quants.quantize(np.ones(shape, np.float32), stored_as)
        for shape in set(shapes.values())
        if len(shape) == 2
    }
    for name, shape in shapes.items():
        stored = f"{names.get_name(name)}.weight"
        if shape in matrices:
            writer.add_tensor(stored, matrices[shape], raw_dtype=stored_as)
        else:
            writer.add_tensor(stored, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
