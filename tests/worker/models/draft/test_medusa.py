"""Medusa's drafts are those of its paper, recomputed from the target's hidden states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.drafters.draft_head_weights import StateHeadWeights
from baton_worker.layers.build_context import BuildContext
from tests.support.worker.draft_heads import Tensors, random_tensors, save_head, with_head
from tests.support.worker.head_runs import check_drafts
from tests.support.worker.scheduled_engine import DEVICE

HEADS, LAYERS = 3, 2
CONFIG = {"architectures": ["MedusaModel"], "num_heads": HEADS, "num_hidden_layers": LAYERS}


@pytest.fixture(scope="module")
def loaded(stories: Path) -> LoadedModel:
    return load_model(stories, BuildContext(DEVICE, torch.float32))


def shapes(loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    hidden, heads = loaded.spec.hidden, range(HEADS)
    blocks = {
        f"blocks.{n}.layers.{m}.weight": (hidden, hidden) for n in heads for m in range(LAYERS)
    }
    return blocks | {f"lm_heads.{n}.weight": (loaded.vocab_size, hidden) for n in heads}


def expected(tensors: Tensors, hidden: Tensor) -> list[Tensor]:
    """Logits of each head for a hidden state [hidden]."""
    logits = []
    for head in range(HEADS):
        x = hidden
        for layer in range(LAYERS):
            bias = tensors.get(f"blocks.{head}.layers.{layer}.bias")
            x = x + F.silu(F.linear(x, tensors[f"blocks.{head}.layers.{layer}.weight"], bias))
        logits.append(tensors[f"lm_heads.{head}.weight"] @ x)
    return logits


@pytest.mark.row("D07", "F08.08")
def test_drafts_are_those_of_the_paper(loaded: LoadedModel, stories: Path, tmp_path: Path) -> None:
    tensors = random_tensors(shapes(loaded))
    served = with_head(loaded, save_head(tmp_path, tensors, **CONFIG), "medusa")

    def drafts(tokens: list[int], hidden: Tensor) -> list[int]:
        return [int(logits.argmax()) for logits in expected(tensors, hidden[-1])]

    check_drafts(served, stories, drafts, HEADS)


@pytest.mark.row("D07")
def test_every_layout_of_a_checkpoint(loaded: LoadedModel, tmp_path: Path) -> None:
    """As its authors store it, with a vocabulary of its own, and with one language head."""
    tensors = random_tensors(shapes(loaded))
    biases = {name.replace("weight", "bias"): shape[:1] for name, shape in shapes(loaded).items()}
    biased = tensors | random_tensors({name: s for name, s in biases.items() if "blocks" in name})
    authors = {}
    for name, tensor in biased.items():
        kind, head, *rest = name.split(".")
        at = f"{head}.{rest[1]}.linear.{rest[2]}" if kind == "blocks" else f"{head}.{LAYERS}.weight"
        authors[at] = tensor
    ids = torch.arange(loaded.vocab_size)[7::3]
    truncated = {"vocab_size": loaded.vocab_size, "truncated_vocab_size": len(ids)}
    shared = tensors | {f"lm_heads.{n}.weight": tensors["lm_heads.0.weight"] for n in range(HEADS)}
    stored = {name: tensor for name, tensor in shared.items() if name[:10] != "lm_heads.1"}
    del stored["lm_heads.2.weight"]
    cases = (
        (authors, {"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS}, biased),
        (tensors | {"token_map": ids}, CONFIG | truncated, tensors),
        (stored, CONFIG | {"original_lm_head": True}, shared),
    )
    states = torch.randn(4, loaded.spec.hidden)
    for number, (files, config, plain) in enumerate(cases):
        served = with_head(
            loaded, save_head(tmp_path / str(number), files, **config), "draft_model"
        )
        assert isinstance(served.drafter, StateHeadWeights) and served.drafter.method == "medusa"
        for depth in range(HEADS):
            ours, _ = served.drafter.head(states, torch.zeros(4, dtype=torch.long), depth)
            theirs = torch.stack([expected(plain, state)[depth] for state in states])
            if "token_map" in files:
                assert (ours.isfinite().sum(1) == len(ids)).all()
                ours, theirs = ours[:, ids], theirs[:, ids]
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_head_of_another_model_is_refused_by_name(loaded: LoadedModel, tmp_path: Path) -> None:
    tensors = random_tensors(shapes(loaded))
    for config, method, error, words in (
        (CONFIG | {"hidden_size": 32}, "medusa", ModelError, "32 channels"),
        (CONFIG | {"vocab_size": 1 << 20}, "medusa", ModelError, "1048576 tokens"),
        (CONFIG, "mlp_speculator", SettingsError, "whose method is medusa"),
        ({"architectures": ["LlamaForCausalLM"]}, "medusa", ModelError, "no draft head"),
        (
            CONFIG | {"vocab_size": 512, "truncated_vocab_size": 5},
            "medusa",
            ModelError,
            "token_map",
        ),
    ):
        folder = save_head(tmp_path / words, tensors, **config)
        with pytest.raises(error, match=words):
            with_head(loaded, folder, method)
