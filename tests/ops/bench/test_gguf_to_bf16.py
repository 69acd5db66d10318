from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from baton_ops.bench.gguf_to_bf16 import main
from tests.support.gguf_vocabulary import save_vocabulary
from tools.make_random_gguf import Shape, save

SHAPE = Shape(width=128, inner=96, layers=1, heads=2, kv_heads=1, vocab=500)


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_becomes_a_bfloat16_folder(tmp_path: Path) -> None:
    source = tmp_path / "random.gguf"
    save(source, save_vocabulary(tmp_path / "vocabulary.gguf"), SHAPE)
    main(source, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (tmp_path / "tokenizer.json").is_file()
    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        kinds = {str(weights.get_tensor(name).dtype) for name in weights.keys()}  # noqa: SIM118
    assert kinds == {"torch.bfloat16"}
