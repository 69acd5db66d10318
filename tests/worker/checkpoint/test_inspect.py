"""The printed tree of a spec."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from baton_worker.checkpoint.inspect import brief, tree
from baton_worker.checkpoint.task import served_task
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import resolve
from baton_worker.spec import Norm, Rope
from baton_worker.spec.hf_config import read_config
from tests.oracles.checkpoints import MAKERS
from tests.support import tiny_dual_encoders, tiny_models

CPU = torch.device("cpu")


def text(folder: Path) -> str:
    console = Console(width=300, record=True, file=StringIO())
    console.print(tree("Tiny", resolve(read_config(folder)), BuildContext(CPU, torch.float32)))
    return console.export_text()


def test_equal_layers_are_shown_once_with_sizes_and_backends(tmp_path: Path) -> None:
    config = tiny_models.tiny_config("Gemma2ForCausalLM")
    config.save_pretrained(tmp_path)
    lines = text(tmp_path).splitlines()
    assert lines[0].startswith("Tiny  ") and "K parameters" in lines[0]
    found = [line.split("─ ")[1] for line in lines if "─ layer" in line]
    assert found == ["layers 0, 2", "layer 1"]
    # Three layers, key and value, two heads of 16 channels, four bytes.
    assert any("keys and values: 768 bytes per token" in line for line in lines)
    assert sum("attention by" in line for line in lines) == 2


def test_what_is_not_keys_and_values_is_in_the_tree(tmp_path: Path) -> None:
    """Two layers of attention fill a page of 4 KiB, one layer that keeps states does so too."""
    tiny_models.tiny_config("MiniMaxForCausalLM", layer_types=None).save_pretrained(tmp_path)
    shown = text(tmp_path)
    # Keys and values of two heads of 8 channels in two layers, of six heads in two.
    assert f"keys and values: {4 * 2 * 8 * (2 * 2 + 2 * 6)} bytes per token" in shown
    assert f"states: {2 * 6 * 8 * 8 * 4} bytes per page" in shown
    size = 16 * 2 * 6 * 8 * 4 + 6 * 8 * 8 * 4
    groups = "3 groups of layers that see all tokens, the last 17 (2 groups)"
    assert f"pages: {size} bytes for 16 tokens of one of {groups}" in shown
    assert "LinearAttention(num_heads=6, head_dim=8, decays=(" in shown


def test_many_numbers_are_not_spelled_out() -> None:
    assert brief(tuple(range(20))) == "(0, ... 20 in all)"


def test_encoders_and_stacks_within_are_shown_alike(tmp_path: Path) -> None:
    tiny_dual_encoders.save(tmp_path, "CLIPModel")
    config = read_config(tmp_path)
    shown = Console(width=300, record=True, file=StringIO())
    shown.print(tree("Tiny", served_task(config, tmp_path).spec, BuildContext(CPU, torch.float32)))
    lines = shown.export_text().splitlines()
    assert any("patches=Patches(" in line for line in lines)
    assert sum("─ layers 0-" in line for line in lines) == 2
    assert sum(line.endswith("─ vision") for line in lines) == 1
    assert not any("names=" in line or "per token" in line for line in lines)


def test_latent_attention_says_what_runs_it(tmp_path: Path) -> None:
    tiny_models.tiny_config("DeepseekV3ForCausalLM").save_pretrained(tmp_path)
    assert text(tmp_path).count("attention by") == 1


def test_layers_without_attention_say_so(tmp_path: Path) -> None:
    MAKERS["DeciLMForCausalLM"](tmp_path)
    assert text(tmp_path).count("nothing") == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "nothing"),
        (0.1 + 0.2, "0.3"),
        ((0.1 + 0.2, (1, None)), "(0.3, (1, nothing))"),
        (Norm(1e-5, kind="layer"), "Norm(eps=1e-05, kind=layer)"),
        (Rope(8, 10.0, 32), "Rope(dim=8, base=10, max_position=32)"),
    ],
)
def test_defaults_are_left_out(value: object, expected: str) -> None:
    assert brief(value) == expected
