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
from transformers import (
    DeepseekV3Config,
    DeepseekV3Model,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
)

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.kv_cache import page_groups
from baton_worker.layers.build_context import BuildContext
from tests.oracles.mixtures import pangu_ultra, step3p5
from tests.support import tiny_models
from tests.support.worker.draft_heads import Tensors, random_tensors, with_head
from tests.support.worker.head_runs import check_drafts, last_hidden
from tests.support.worker.plain_heads import OracleBody, OracleTarget, PlainHead, drafts_of_levels
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


class Recomputed:
    """Targets whose head is not one more layer of a model of transformers: each method stores one
    in a folder, and returns the re-computation of its drafts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def PanguUltraMoEForCausalLM(self) -> PlainHead:
        oracle = pangu_ultra(self._folder, "PanguUltraMoEForCausalLM", vocab=512)
        oracle.config.num_hidden_layers = 2
        parts = self._parts("model.layers.2.", NAMES, num_hidden_layers=2)
        body = OracleBody(lambda x: oracle.block(2, x))
        return _head(body, OracleTarget(oracle), parts, NAMES)

    def Step3p5ForCausalLM(self) -> PlainHead:
        """A language head of its own; the layer is one level deeper."""
        oracle = step3p5(self._folder, "Step3p5ForCausalLM", vocab=512)
        body = copy.deepcopy(oracle.tower)
        body.layers = nn.ModuleList([body.layers[3]])
        body.config.num_hidden_layers, body.config.layer_types = 1, ["sliding_attention"]
        oracle.tower.config.num_hidden_layers = 3
        at, names = "model.layers.3.", (*NAMES[:3], "transformer.shared_head.norm")
        own = random_tensors({"head": (512, 48)})["head"]
        head = {f"{at}transformer.shared_head.output.weight": own}
        parts = self._parts(
            at, names, offset=1.0, deeper="transformer.", extra=head, num_hidden_layers=3
        )
        return _head(body, OracleTarget(oracle), parts, names, offset=1.0, head=own)

    def GlmOcrForConditionalGeneration(self) -> PlainHead:
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 2, 2]}
        text = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "head_dim": 12}
        text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
        text |= {"rope_parameters": rope | {"partial_rotary_factor": 1.0}}
        eyes = {"depth": 1, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4}
        config = GlmOcrConfig(
            text_config=text | {"tie_word_embeddings": False, "max_position_embeddings": 256},
            vision_config=eyes | {"patch_size": 4, "intermediate_size": 56},
            image_token_id=511,
        )
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = GlmOcrForConditionalGeneration(config).eval()
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.data.normal_(0.0, 0.3)
        model.save_pretrained(self._folder)
        tower = model.model.language_model
        body = copy.deepcopy(tower)
        body.layers = nn.ModuleList([body.layers[2]])
        tower.layers = tower.layers[:2]
        at = "model.language_model.layers.2."
        parts = self._parts(at, NAMES, text_config={"num_hidden_layers": 2})
        return _head(body, model, parts, NAMES)

    def LongcatFlashForCausalLM(self) -> PlainHead:
        """DeepSeek-V3's dense layer; LongCat's factors are in its low-rank norms."""
        model = tiny_models.save_checkpoint(
            self._folder, "LongcatFlashForCausalLM", vocab_size=512, tie_word_embeddings=False
        )
        c = model.config
        same = (
            "hidden_size num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim vocab_size"
        )
        same += " qk_rope_head_dim v_head_dim attention_bias rms_norm_eps rope_parameters"
        fields = {name: getattr(c, name) for name in same.split()}
        fields |= {"num_key_value_heads": c.num_attention_heads, "num_hidden_layers": 1}
        body = DeepseekV3Model(
            DeepseekV3Config(**fields, intermediate_size=c.ffn_hidden_size, first_k_dense_replace=1)
        ).eval()
        layer = random_tensors({n: tuple(t.shape) for n, t in body.layers[0].state_dict().items()})
        names = ("layers.0.eh_proj", "layers.0.enorm.m", "layers.0.hnorm.m", "norm")
        at = "model.mtp."
        own = {
            f"{at}layers.0.{name.replace('mlp.', 'transformer_layer.mlp.')}": tensor
            for name, tensor in layer.items()
        }
        own[f"{at}embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
        for part, rank in (("q_a", c.q_lora_rank), ("kv_a", c.kv_lora_rank)):
            name = f"self_attn.{part}_layernorm.weight"
            layer[name] = layer[name] * (c.hidden_size / rank) ** 0.5
        body.layers[0].load_state_dict(layer)
        parts = self._parts(at, names, extra=own)
        return _head(body, self._folder, parts, names, carries_normed=True)

    def _parts(
        self,
        at: str,
        names: tuple[str, ...],
        *,
        offset: float = 0.0,
        deeper: str = "",
        extra: Tensors | None = None,
        **fields: Any,
    ) -> Tensors:
        """Put a projection and norms under a prefix of the stored checkpoint, the layer that is
        there one level `deeper`, and change its config."""
        shapes: dict[str, tuple[int, ...]] = {names[0]: (48, 96)} | dict.fromkeys(names[1:], (48,))
        parts = random_tensors(dict(zip(names, shapes.values(), strict=True)))
        parts = {n: t - offset if t.ndim == 1 else t for n, t in parts.items()}
        path = self._folder / "model.safetensors"
        stored = {
            re.sub("^" + re.escape(at), at + deeper, n): t for n, t in load_file(path).items()
        }
        stored |= {f"{at}{name}.weight": tensor for name, tensor in parts.items()} | (extra or {})
        save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path)
        config = json.loads((self._folder / "config.json").read_text())
        for name, value in ({"num_nextn_predict_layers": 1} | fields).items():
            config[name] = config[name] | value if isinstance(value, dict) else value
        (self._folder / "config.json").write_text(json.dumps(config))
        return parts


def _head(
    body: Any,
    target: Any,
    parts: Tensors,
    names: tuple[str, ...],
    *,
    offset: float = 0.0,
    **options: Any,
) -> PlainHead:
    """`parts` under the names of projection, norms of embeddings and hidden states, final norm."""
    eps = 1e-6 if isinstance(body, OracleBody) else body.config.rms_norm_eps
    norms = [
        (lambda x, w=parts[name] + offset: F.rms_norm(x, x.shape[-1:], w, eps))
        for name in names[1:]
    ]
    return PlainHead(
        body,
        target,
        parts[names[0]],
        embedding_norm=norms[0],
        hidden_norm=norms[1],
        final_norm=norms[2],
        **options,
    )


@pytest.mark.row("F08.10", "D12", "D15", "D16", "D17")
def test_drafts_where_the_head_is_no_layer_of_the_target(tmp_path: Path) -> None:
    for architecture in (
        "LongcatFlashForCausalLM",
        "PanguUltraMoEForCausalLM",
        "Step3p5ForCausalLM",
        "GlmOcrForConditionalGeneration",
    ):
        folder = tmp_path / architecture
        folder.mkdir()
        plain = getattr(Recomputed(folder), architecture)()
        loaded = load_model(folder, BuildContext(DEVICE, torch.float32))
        served = with_head(loaded, folder, "mtp", within=True)
        windows = page_groups(served.kv_spec, 4, torch.float32).windows
        num_pages = 200 if len(set(windows)) > 1 else 28
        check_drafts(served, None, plain.drafts(MOST), MOST, num_pages, every=15)


@pytest.mark.row("F08.10", "D13")
def test_each_of_several_layers_makes_its_own_draft(tmp_path: Path) -> None:
    """Three layers behind a target of two, each with a projection and norms of its own."""
    architecture = "Glm4MoeForCausalLM"
    changes = {"vocab_size": 512, "tie_word_embeddings": False, "num_hidden_layers": 5}
    model = tiny_models.save_checkpoint(tmp_path, architecture, **changes)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors, levels = load_file(tmp_path / "model.safetensors"), list[PlainHead]()
    for number in (2, 3, 4):
        body = copy.deepcopy(model.model)
        body.layers, body.config.num_hidden_layers = nn.ModuleList([body.layers[number]]), 1
        shapes: dict[str, tuple[int, ...]] = {NAMES[0]: (48, 96)} | dict.fromkeys(NAMES[1:], (48,))
        parts = random_tensors(shapes, seed=number)
        tensors |= {f"model.layers.{number}.{name}.weight": t for name, t in parts.items()}
        levels.append(_head(body, model, parts, NAMES))
    save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    served = with_head(loaded, tmp_path, "mtp", within=True, most=MOST)
    assert len(served.kv_spec.layers) == 5 and served.drafter and served.drafter.most == 3
    check_drafts(served, None, drafts_of_levels(levels, last_hidden(tmp_path)), MOST)
    alone = with_head(loaded, tmp_path, "mtp", within=True)
    assert len(alone.kv_spec.layers) == 3, "one draft takes one layer"


def test_a_checkpoint_without_the_layer_is_refused_by_name(stories: Path, tmp_path: Path) -> None:
    loaded = load_model(stories, BuildContext(DEVICE, torch.float32))
    with pytest.raises(ModelError, match="no multi-token prediction"):
        with_head(loaded, stories, "mtp", within=True)
    tiny_models.save_checkpoint(tmp_path, "DeepseekV3ForCausalLM")
    loaded = load_model(tmp_path, BuildContext(DEVICE, torch.float32))
    with pytest.raises(ModelError, match="no tensors of a DeepSeekMTPModel"):
        with_head(loaded, tmp_path, "mtp", within=True)
