"""From the configs of encoders to specs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models.families.encoders import (
    bert,
    gemma3_text,
    gte,
    modernbert,
    nomic,
    roberta,
)
from baton_worker.pooling.labels import num_labels
from baton_worker.spec import (
    Attention,
    Encoder,
    Glu,
    MegablocksExperts,
    Mlp,
    Positions,
)


def config(**fields: Any) -> SimpleNamespace:
    given = {
        "hidden_size": 8,
        "vocab_size": 9,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 34,
        "type_vocab_size": 2,
        "pad_token_id": 1,
    }
    return SimpleNamespace(**given | fields)


def test_positions_begin_behind_the_padding_index() -> None:
    spec = roberta(config())
    assert spec.embedding.positions == Positions(34, 2) and spec.max_length == 32
    assert bert(config()).embedding.positions == Positions(34, 0)


@pytest.mark.parametrize(
    ("architecture", "prefix"),
    [("GteModel", "gte"), ("GteNewModel", "new"), ("NewForSequenceClassification", "new")],
)
def test_gte_has_two_names(architecture: str, prefix: str) -> None:
    spec = gte(config(architectures=[architecture]))
    assert dict(spec.tensors.names)["embedding"] == f"{prefix}.embeddings.word_embeddings"
    assert {rule.source.split(".")[0] for rule in spec.tensors.fused} == {prefix}
    mixer, ffn = spec.layers[0]
    assert isinstance(mixer, Attention) and mixer.rope is not None
    assert mixer.rope.base == 160_000.0 and mixer.projections.bias
    assert ffn == Glu(16, "gelu", down_bias=True)


GPT2: dict[str, Any] = {
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 4,
    "n_inner": None,
    "n_positions": 32,
    "vocab_size": 9,
    "type_vocab_size": 2,
    "layer_norm_epsilon": 1e-5,
    "prenorm": False,
    "rotary_emb_base": 1000,
    "activation_function": "swiglu",
}


def test_nomic_as_its_own_code_has_it() -> None:
    spec = nomic(SimpleNamespace(**GPT2))
    assert spec.layers[0][1] == Glu(32, "silu") and spec.max_length == 32
    assert dict(spec.tensors.names)["gate"].endswith("mlp.fc12")


def test_every_second_layer_of_experts() -> None:
    fields = {"activation_function": "gelu", "mlp_fc1_bias": True, "moe_every_n_layers": 2}
    spec = nomic(SimpleNamespace(**GPT2 | fields, num_experts=4, moe_top_k=2))
    kinds = [type(ffn) for _, ffn in spec.layers]
    assert kinds == [Mlp, MegablocksExperts, Mlp, MegablocksExperts]


@pytest.mark.parametrize(
    "fields", [{"prenorm": True}, {"rotary_emb_interleaved": True}, {"rotary_emb_fraction": 0.5}]
)
def test_what_nomic_has_never_been(fields: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match="not supported"):
        nomic(SimpleNamespace(**GPT2 | fields))


def test_modernbert_alternates() -> None:
    fields = {"norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False}
    spec = modernbert(config(**fields, local_attention=8, num_hidden_layers=4))
    mixers = [mixer for mixer, _ in spec.layers]
    assert [m.mask.window for m in mixers if isinstance(m, Attention)] == [None, 4, 4, None]
    bases = [m.rope.base for m in mixers if isinstance(m, Attention) and m.rope]
    assert bases == [160_000.0, 10_000.0, 10_000.0, 160_000.0]
    assert spec.bare_layers == 1 and spec.classify_from == "first"


def test_labels() -> None:
    assert num_labels(config()) == 2
    assert num_labels(config(num_labels=5)) == 5
    assert num_labels(config(id2label=SimpleNamespace(**{"0": "a"}))) == 1


def test_relative_positions_are_refused() -> None:
    with pytest.raises(AttributeError, match="relative_key"):
        bert(config(position_embedding_type="relative_key"))


def test_gemma_3_is_an_encoder_if_its_config_says_so() -> None:
    c = config(sliding_window=12, head_dim=4)
    causal = gemma3_text(c)
    assert not isinstance(causal, Encoder)
    both = gemma3_text(SimpleNamespace(**vars(c) | {"use_bidirectional_attention": True}))
    assert isinstance(both, Encoder)
    for spec, window in ((causal, 12), (both, 6)):
        mixer, _ = spec.layers[0]
        assert isinstance(mixer, Attention) and mixer.mask.window == window
    capped = {"use_bidirectional_attention": True, "attn_logit_softcapping": 5.0}
    with pytest.raises(ModelError, match="attn_logit_softcapping"):
        gemma3_text(SimpleNamespace(**vars(c) | capped))
