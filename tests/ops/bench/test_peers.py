"""Benchmark rounds include every system, and their ratios are correct."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from baton.errors import SettingsError
from baton_ops.bench import peers
from baton_ops.bench.load_generator import Outcome
from baton_ops.bench.peer_systems import PeerSystem, PeerSystems
from baton_ops.bench.peers import (
    Peers,
    Run,
    all_runs,
    ratios,
    report,
)
from baton_ops.bench.summary import Summary, summarise
from tests.fakes.openai_server import Completions, Site


def summary(tokens: int, seconds: float = 1.0) -> Summary:
    return summarise([Outcome(0.0, [0.5, seconds], 1, tokens, seconds)])


def shown(runs: list[Run]) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(ratios(runs))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_ratio_is_baton_over_the_peer_with_the_same_weights() -> None:
    runs = [
        Run(name, 1, number, summary(tokens))
        for name, tokens in (("baton bf16", 30), ("baton stored", 80), ("llama.cpp stored", 40))
        for number in (1, 2)
    ]
    text = shown(runs)
    assert "Baton / llama.cpp stored" in text and "2.00" in text
    assert "bf16" in text and "Baton / baton" not in text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"against": ("llama.cpp",)}, "which only vLLM reads"),
        ({"weights": ("stored",)}, "which only vLLM reads"),
        ({"speculation": ("draft_model",)}, "name a GGUF file"),
    ],
)
def test_a_folder_is_compared_with_vllm_in_bfloat16_only(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match=reason):
        peers.run(Peers(model=str(tmp_path), **fields), Console(quiet=True))


def test_the_spread_over_the_rounds_is_shown() -> None:
    runs = [Run("baton bf16", 8, n, summary(tokens)) for n, tokens in ((1, 30), (2, 50))]
    assert "40.0 (30.0 to 50.0)" in shown(runs)


def test_every_system_runs_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, order = Completions(), list[str]()
    options = Peers(concurrency=(1, 5), rounds=2, input_len=4, output_len=5, out=tmp_path)

    @contextmanager
    def running(command: Any, *given: Any) -> Iterator[str]:
        order.append(command(7)[0])
        with Site(fake.app) as site:
            yield site.url

    monkeypatch.setattr(peers, "running", running)
    systems = [PeerSystem(name, (name, "{port}"), "/") for name in ("baton bf16", "vllm bf16")]
    runs = list(all_runs(options, systems, Console(quiet=True)))
    assert order == ["baton bf16", "vllm bf16"] * 2
    assert not any("messages" in body for body in fake.asked)
    assert [(r.name, r.concurrency, r.round) for r in runs[:2]] == [
        ("baton bf16", 1, 1),
        ("baton bf16", 5, 1),
    ]
    assert len(runs) == 8
    assert all(r.summary.failed == 0 for r in runs)
    assert {r.summary.successful for r in runs} == {8, 10}, "eight at least"
    assert {r.summary.output_tokens for r in runs} == {40, 50}
    assert len(json.loads(json.dumps(report(options, runs)))["runs"]) == 8


def test_images_are_sent_to_those_that_read_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones with every request, as a chat."""
    fake, made = Completions(), list[Any]()

    @contextmanager
    def running(*given: Any) -> Iterator[str]:
        with Site(fake.app) as site:
            yield site.url

    def systems(systems: PeerSystems, *names: Any, **weights: Any) -> list[PeerSystem]:
        made.append((systems.wide(), names, weights))
        return [PeerSystem(name, (name,), "/") for name in ("baton bf16", "vllm bf16")]

    monkeypatch.setattr(peers, "running", running)
    monkeypatch.setattr(PeerSystems, "systems", systems)
    (tmp_path / "config.json").write_text("{}")
    options = Peers(
        model=str(tmp_path), images=2, image_width=16, image_height=16, concurrency=(1,), rounds=1,
        input_len=8, output_len=2, out=tmp_path / "out", folder=tmp_path / "peers",
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    peers.run(options, Console(quiet=True))
    assert made == [(tmp_path, (("vllm",), 1, ()), {"weights": ("bf16",)})]
    shown = [body["messages"][0]["content"] for body in fake.asked]
    urls = [part["image_url"]["url"] for parts in shown if len(parts) == 3 for part in parts[:2]]
    assert len(urls) == 2 * 2 * (2 + 8) and len(set(urls)) == 2 * (2 + 8)
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(SettingsError, match="needs the folder of a model that sees"):
        peers.run(Peers(model=str(file), images=1), Console(quiet=True))
