"""What people read about a spec."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from baton_worker.models import resolve
from baton_worker.models.config import read_config
from baton_worker.models.spec import Norm, Rope
from baton_worker.models.tree import brief, tree
from tests import tiny
from tests.oracles.checkpoints import MAKERS

CPU = torch.device("cpu")


def text(folder: Path) -> str:
    console = Console(width=300, record=True, file=StringIO())
    console.print(tree("Tiny", resolve(read_config(folder)), device=CPU, dtype=torch.float32))
    return console.export_text()


def test_equal_layers_are_shown_once_with_sizes_and_backends(tmp_path: Path) -> None:
    config = tiny.tiny_config("Gemma2ForCausalLM")
    config.save_pretrained(tmp_path)
    lines = text(tmp_path).splitlines()
    assert lines[0].startswith("Tiny  ") and "K parameters" in lines[0]
    assert [line.split("layers ")[1] for line in lines if "layers " in line] == ["0, 2", "1"]
    # Three layers, key and value, two heads of 16 channels, four bytes.
    assert any("keys and values: 768 bytes per token" in line for line in lines)
    assert sum("attention by" in line for line in lines) == 2


def test_layers_without_attention_say_so(tmp_path: Path) -> None:
    MAKERS["DeciLMForCausalLM"](tmp_path)
    assert text(tmp_path).count("nothing") == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nothing"),
        (0.1 + 0.2, "0.3"),
        (Norm(1e-5, kind="layer"), "Norm(eps=1e-05, kind=layer)"),
        (Rope(8, 10.0, 32), "Rope(dim=8, base=10, max_position=32)"),
    ],
)
def test_defaults_are_left_out(value: object, expected: str) -> None:
    assert brief(value) == expected
