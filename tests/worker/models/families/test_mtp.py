"""Drafts of multi-token prediction are those of a plain recomputation, for every layout.

A tiny model of transformers gives its last layer away: it is stored as that of the prediction, and
run alone by the recomputation.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kv_cache import page_groups
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_models
from tests.support.worker.draft_heads import Tensors, random_tensors, with_head
from tests.support.worker.head_runs import check_drafts
from tests.support.worker.plain_heads import PlainHead
from tests.support.worker.scheduled_engine import DEVICE

MOST = 3
NAMES = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
FC = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


@dataclass
class Layout:
    """How a family stores the layer, and what differs in its head."""

    prefix: str
    """Of everything; `{n}` is the number of layers that are left."""
    layer: str = ""
    """Of the decoder layer, behind that."""
    names: tuple[str, str, str, str] = NAMES
    """Projection, norm of embeddings, norm of hidden states, final norm if there is one."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the tiny model, which has the layer as its last."""
    config: dict[str, Any] = field(default_factory=dict)
    """Fields of the stored config."""
    offset: float = 0.0
    """What is added to the weights of norms."""
    carries_normed: bool = False
    hidden_first: bool = False
    copies: tuple[str, ...] = ()
    """Tables that are stored once more."""


TYPES = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
NUMBERED = "model.layers.{n}."
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
LAYOUTS = {
    "DeepseekV3ForCausalLM": Layout(NUMBERED, copies=COPIES),
    "Glm4MoeForCausalLM": Layout(NUMBERED, copies=COPIES),
    "Glm4MoeLiteForCausalLM": Layout(NUMBERED, copies=COPIES),
    "Ernie4_5_MoeForCausalLM": Layout(
        "model.mtp_",
        "block.0.",
        ("linear_proj.0", "emb_norm.0", "hidden_norm.0", ""),
    ),
    "Qwen2ForCausalLM": Layout(
        "model.mtp_layers.0.",
        names=("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
        changes={"use_sliding_window": False, "layer_types": ["full_attention"] * 3},
        config={"architectures": ["MiMoForCausalLM"]},
        carries_normed=True,
        hidden_first=True,
    ),
    "Qwen3NextForCausalLM": Layout(
        "mtp.",
        "layers.0.",
        FC,
        {"num_hidden_layers": 4, "layer_types": TYPES},
        offset=1.0,
        carries_normed=True,
    ),
    "ExaoneMoeForCausalLM": Layout(
        "mtp.",
        "layers.0.",
        FC,
        {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
        {"mtp_layer_types": ["sliding_attention"]},
        carries_normed=True,
    ),
}
ROWS = ("D09", "D13", "D14", "D10", "D11", "D18", "D19")


class Stored:
    """A target with a layer of prediction in its checkpoint, and the parts of that."""

    def __init__(self, folder: Path, architecture: str, layout: Layout) -> None:
        changes = {"vocab_size": 512, "tie_word_embeddings": False} | layout.changes
        model = tiny_models.save_checkpoint(folder, architecture, **changes)
        self.count = model.config.num_hidden_layers - 1
        self.layout, self.prefix = layout, layout.prefix.format(n=self.count)
        self.body = self._body(model)
        self.parts = self._parts(model)
        self._store(folder, model)

    def _body(self, model: Any) -> Any:
        """The last layer alone, as a model."""
        body = copy.deepcopy(model.model)
        body.layers = nn.ModuleList([body.layers[self.count]])
        body.config.num_hidden_layers = 1
        if getattr(body.config, "layer_types", None):
            body.config.layer_types = [body.config.layer_types[self.count]]
        return body

    def _parts(self, model: Any) -> Tensors:
        hidden = model.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            f"{self.layout.names[0]}.weight": (hidden, 2 * hidden)
        }
        shapes |= {f"{name}.weight": (hidden,) for name in self.layout.names[1:] if name}
        made = random_tensors(shapes)
        return {n: t - self.layout.offset if t.ndim == 1 else t for n, t in made.items()}

    def _store(self, folder: Path, model: Any) -> None:
        config = json.loads((folder / "config.json").read_text())
        whole = config["num_hidden_layers"]
        for name, value in config.items():
            if isinstance(value, list) and len(value) == whole and name != "architectures":
                config[name] = value[:-1]
        config |= {"num_hidden_layers": self.count, "num_nextn_predict_layers": 1}
        (folder / "config.json").write_text(json.dumps(config | self.layout.config))
        tensors, last = load_file(folder / "model.safetensors"), f"model.layers.{self.count}."
        at = self.prefix + self.layout.layer
        tensors = {re.sub("^" + re.escape(last), at, name): t for name, t in tensors.items()}
        tensors |= {self.prefix + name: tensor for name, tensor in self.parts.items()}
        table = tensors["model.embed_tokens.weight"]
        tensors |= {self.prefix + name: table.clone() for name in self.layout.copies}
        save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")

    def norm(self, part: int) -> Any:
        """One of the head's norms."""
        if not (name := self.layout.names[part]):
            return lambda x: x
        weight = self.parts[f"{name}.weight"] + self.layout.offset
        eps = getattr(self.body.config, "rms_norm_eps", 1e-6)

        def normed(x: Tensor) -> Tensor:
            return F.rms_norm(x, x.shape[-1:], weight, eps)

        return normed


@pytest.mark.row("F08.10", "F08.06", *ROWS)
@pytest.mark.parametrize("architecture", LAYOUTS)
def test_drafts_of_a_layer_in_the_targets_checkpoint(tmp_path: Path, architecture: str) -> None:
    layout = LAYOUTS[architecture]
    stored = Stored(tmp_path, architecture, layout)
    loaded = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    assert len(loaded.spec.layers) == stored.count
    served = with_head(loaded, tmp_path, "mtp", within=True)
    assert len(served.kv_spec.layers) == stored.count + 1
    plain = PlainHead(
        stored.body,
        tmp_path,
        stored.parts[f"{layout.names[0]}.weight"],
        embedding_norm=stored.norm(1),
        hidden_norm=stored.norm(2),
        final_norm=stored.norm(3),
        carries_normed=layout.carries_normed,
        hidden_first=layout.hidden_first,
    )
    # Windows take more pages: those of several groups.
    num_pages = 200 if len(set(page_groups(served.kv_spec, 4, torch.float32).windows)) > 1 else 28
    check_drafts(served, tmp_path, plain.drafts(MOST), MOST, num_pages)


def test_a_checkpoint_without_the_layer_is_refused_by_name(stories: Path, tmp_path: Path) -> None:
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32))
    with pytest.raises(ModelError, match="no multi-token prediction"):
        with_head(loaded, stories, "mtp", within=True)
    tiny_models.save_checkpoint(tmp_path, "DeepseekV3ForCausalLM")
    loaded = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    with pytest.raises(ModelError, match="no tensors of a DeepSeekMTPModel"):
        with_head(loaded, tmp_path, "mtp", within=True)
