"""Writes a Qwen2.5 with random weights as a GGUF file, of any size, for benchmarks.

    python -m tools.make_random_gguf VOCABULARY.gguf OUT.gguf --width 896 --inner 4864 --layers 24
    llama-quantize OUT.gguf OUT.Q4_K_M.gguf Q4_K_M
    python -m tools.make_random_gguf VOCABULARY.gguf OUT.gguf --width 1024 --heads 16 --type IQ2_XS

Matrices are in float16, or all in one type, whose block size must divide the row length. The tokens
of another GGUF file are padded to the vocabulary size of Qwen2.5, since the language head takes a
large part of a step of a small model. The same arguments give the same bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from tools.arguments import existing_path, positive_int
from tools.random_blocks import TYPES, random_blocks

_HEAD = 64
_SCALE = 0.02


class Shape(NamedTuple):
    """Sizes of a model; those of Qwen2.5-0.5B by default."""

    width: int = 896
    inner: int = 4864
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    vocab: int = 151_936

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors; shapes are (outputs, inputs)."""
        yield "token_embd.weight", (self.vocab, self.width)
        yield "output_norm.weight", (self.width,)
        queries, keys = self.heads * _HEAD, self.kv_heads * _HEAD
        for layer in range(self.layers):
            sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
            for part, rows in sizes.items():
                yield f"blk.{layer}.{part}.weight", (rows, self.width)
                yield f"blk.{layer}.{part}.bias", (rows,)
            yield f"blk.{layer}.attn_output.weight", (self.width, queries)
            yield f"blk.{layer}.ffn_gate.weight", (self.inner, self.width)
            yield f"blk.{layer}.ffn_up.weight", (self.inner, self.width)
            yield f"blk.{layer}.ffn_down.weight", (self.width, self.inner)
            for norm in ("attn_norm", "ffn_norm"):
                yield f"blk.{layer}.{norm}.weight", (self.width,)


def save(
    path: Path, vocabulary: Path, shape: Shape, seed: int = 0, kind: str | None = None
) -> None:
    """Write the file.

    Args:
        vocabulary: GGUF file with a byte-level BPE.
        kind: type of the matrices, one of `TYPES`; None for float16.
    """
    writer = gguf.GGUFWriter(path, "qwen2")
    _add_sizes(writer, shape)
    _add_tokens(writer, gguf.GGUFReader(vocabulary), shape.vocab)
    noise = np.random.default_rng(seed)
    for name, size in shape.tensors():
        if kind is not None and len(size) == 2:
            blocks = random_blocks(noise, size, TYPES[kind], _SCALE)
            writer.add_tensor(name, blocks, raw_dtype=TYPES[kind])
        else:
            writer.add_tensor(name, _weights(noise, name, size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(noise: np.random.Generator, name: str, size: tuple[int, ...]) -> Any:
    if name.endswith("norm.weight"):
        return np.ones(size, np.float32)
    weight = noise.standard_normal(size, dtype=np.float32) * np.float32(_SCALE)
    return weight if len(size) == 1 else weight.astype(np.float16)


def _add_sizes(writer: Any, shape: Shape) -> None:
    writer.add_name("random")
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_block_count(shape.layers)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)


def _add_tokens(writer: Any, source: Any, count: int) -> None:
    """Add the vocabulary of another file, padded with unused tokens."""

    def column(name: str) -> Any:
        return source.get_field(f"tokenizer.ggml.{name}").contents()

    tokens, kinds = column("tokens"), column("token_type")
    more = count - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(column("pre"))
    writer.add_token_list([*tokens, *(f"<fill_{number}>" for number in range(more))])
    writer.add_token_types([*kinds, *[gguf.TokenType.UNUSED] * more])
    writer.add_token_merges(column("merges"))
    for role in ("eos", "bos"):
        getattr(writer, f"add_{role}_token_id")(column(f"{role}_token_id"))
    writer.add_chat_template(source.get_field("tokenizer.chat_template").contents())


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.make_random_gguf", description=__doc__)
    parser.add_argument("vocabulary", type=existing_path)
    parser.add_argument("out", type=Path)
    for name, value in Shape()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive_int, default=value)
    parser.add_argument("--type", choices=TYPES, help="type of the matrices; float16 without")
    args = vars(parser.parse_args())
    vocabulary, out, kind = args.pop("vocabulary"), args.pop("out"), args.pop("type")
    try:
        save(out, vocabulary, Shape(**args), kind=kind)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
