"""The plot is a PNG that shows what it was given."""

from __future__ import annotations

from pathlib import Path

from baton_ops.load import Outcome
from baton_ops.plot import compare, draw
from baton_ops.summary import summarise


def test_draws_a_png(tmp_path: Path) -> None:
    fast = summarise([Outcome(0.0, [0.1, 0.2], input_tokens=2, output_tokens=2, ended=0.2)])
    slow = summarise([Outcome(0.0, [1.0, 9.0], input_tokens=2, output_tokens=2, ended=9.0)])
    one, two = tmp_path / "new" / "one.png", tmp_path / "two.png"
    draw([(1, slow), (8, fast)], "a model", one)
    draw([(1, fast), (8, slow)], "a model", two)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert one.read_bytes() != two.read_bytes()


def test_compares_systems(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    compare([("baton bf16", 40.0, 20.0), ("baton bf16", 300.0, 80.0)], "a model", one)
    compare([("baton bf16", 40.0, 20.0), ("vllm bf16", 300.0, 80.0)], "a model", two)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert one.read_bytes() != two.read_bytes()
