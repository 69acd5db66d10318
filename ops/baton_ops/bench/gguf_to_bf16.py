"""Converts a GGUF checkpoint to a bfloat16 folder, so that all systems can load the same weights.

Requires transformers and accelerate:

    python gguf_to_bf16.py MODEL.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Dequantise, round to bfloat16 and save with the tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype="bfloat16",
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
