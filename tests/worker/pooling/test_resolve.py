"""From configs to recipes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError, SettingsError
from baton_worker.models.families.clip import clip
from baton_worker.models.families.encoders import bert
from baton_worker.pooling.resolve import (
    as_reward,
    classification,
    compared,
    embedding,
)
from baton_worker.pooling.sentence import SentenceFiles
from baton_worker.spec import Decoder, Head, Norm

DECODER = Decoder(hidden=8, vocab=9, layers=(), norm=Norm(1e-6), head=Head())
BERT: dict[str, Any] = {
    "hidden_size": 8,
    "vocab_size": 9,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}


def config(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**BERT | fields)


def labels(*names: str) -> SimpleNamespace:
    return SimpleNamespace(**{str(i): name for i, name in enumerate(names)})


def test_what_an_embedding_is_by_default() -> None:
    encoder = embedding(config(), bert(config()), None)
    assert (encoder.take, encoder.finish, encoder.reach) == ("first", "normalize", "whole")
    decoder = embedding(config(), DECODER, None)
    assert (decoder.take, decoder.finish, decoder.reach) == ("last", "normalize", "last")
    assert embedding(config(), DECODER, None, "mean").reach == "every"
    assert embedding(config(), DECODER, None, "cls").take == "first"


def test_matryoshka_is_what_the_config_says() -> None:
    assert not embedding(config(), DECODER, None).matryoshka
    assert embedding(config(is_matryoshka=True), DECODER, None).matryoshka
    sized = embedding(config(matryoshka_dimensions=[64, 32]), DECODER, None)
    assert sized.matryoshka and sized.sizes == (32, 64)


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("fields", "finish"),
    [
        ({"id2label": labels("a")}, "sigmoid"),
        ({"id2label": labels("a", "b")}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"id2label": labels("a"), "sbert_ce_default_activation_function": IDENTITY}, "identity"),
        ({"sentence_transformers": SimpleNamespace(activation_fn=IDENTITY)}, "identity"),
    ],
)
def test_the_last_function_of_a_classifier(fields: dict[str, Any], finish: str) -> None:
    c = config(**fields)
    assert classification(c, bert(c), "auto").finish == finish


def test_an_activation_that_is_not_known() -> None:
    c = config(sbert_ce_default_activation_function="os.system")
    with pytest.raises(SettingsError, match=r"os\.system"):
        classification(c, bert(c), "auto")


def test_one_label_is_a_score() -> None:
    c = config(id2label=labels("a"))
    one = classification(c, bert(c), "auto")
    assert (one.task, one.width, one.labels, one.pairs) == ("score", 1, ("a",), True)
    assert classification(c, bert(c), "classify").task == "classify"
    two = classification(config(), DECODER, "auto")
    assert (two.task, two.labels, two.pairs) == ("classify", ("LABEL_0", "LABEL_1"), False)
    assert [layer.name for layer in two.head] == ["score"]
    with pytest.raises(SettingsError, match="2 labels"):
        classification(config(), DECODER, "score")


def test_a_reward_is_raw() -> None:
    made = as_reward(classification(config(id2label=labels("a")), DECODER, "auto"))
    assert (made.task, made.finish, made.width) == ("reward", "identity", 1)


def test_towers_pool_by_themselves() -> None:
    made = compared(clip(SimpleNamespace()), None, "auto", "auto")
    assert (made.task, made.width, made.max_length, made.reach) == ("embed", 512, 77, "whole")
    files = SentenceFiles(Path(), "mean", (), True, 0)
    with pytest.raises(ModelError, match="pools by itself"):
        compared(clip(SimpleNamespace()), files, "auto", "auto")
    with pytest.raises(SettingsError, match="--task classify: this model makes vectors"):
        compared(clip(SimpleNamespace()), None, "classify", "auto")
    with pytest.raises(SettingsError, match="--pooling mean: this model pools by itself"):
        compared(clip(SimpleNamespace()), None, "embed", "mean")
