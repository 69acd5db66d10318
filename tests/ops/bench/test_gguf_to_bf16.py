from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from baton_ops.bench.gguf_to_bf16 import main


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_becomes_a_bfloat16_folder(smollm2: Path, tmp_path: Path) -> None:
    main(smollm2, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (tmp_path / "tokenizer.json").is_file()
    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        kinds = {str(weights.get_tensor(name).dtype) for name in weights.keys()}  # noqa: SIM118
    assert kinds == {"torch.bfloat16"}
