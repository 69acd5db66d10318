"""Roles to checkpoint names."""

from __future__ import annotations

from baton_worker.spec.names import Names, is_recomputed


def test_names_follow_hugging_face_unless_changed() -> None:
    names = Names([("norm", "transformer.ln_f"), ("query", "h.{layer}.q")])
    assert names("embedding") == "model.embed_tokens"
    assert names("norm") == "transformer.ln_f"
    assert names.at(3)("query") == "h.3.q"
    assert names.at(3)("key") == "model.layers.3.self_attn.k_proj"


def test_every_name_is_listed_once() -> None:
    every = Names().every(2)
    assert len(every) == len(set(every))
    assert {"lm_head", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"} <= set(every)


def test_saved_frequencies_may_be_ignored_but_weights_may_not() -> None:
    assert is_recomputed("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert not is_recomputed("model.layers.0.self_attn.q_proj.bias")


def test_two_layers_may_be_one_of_the_checkpoint() -> None:
    names = Names([("query", "model.layers.{pair}.self_attn.{half}.q_proj")])
    assert [names.at(layer)("query") for layer in (0, 1, 5)] == [
        "model.layers.0.self_attn.0.q_proj",
        "model.layers.0.self_attn.1.q_proj",
        "model.layers.2.self_attn.1.q_proj",
    ]
