"""The task of each kind of checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.task import ENCODERS, ServedTask, served_task
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.resolve import ARCHITECTURES
from baton_worker.pooling.resolve import Task
from baton_worker.spec import Encoder
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_encoders, tiny_models, tiny_towers


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_models.save_checkpoint(folder, "LlamaForCausalLM")
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    tiny_encoders.save(folder, "BertModel")
    return folder


def served(folder: Path, task: Task = "auto", **fields: Any) -> ServedTask:
    config = SimpleNamespace(**vars(read_config(folder)) | fields)
    return served_task(config, folder, task)


def test_a_decoder_generates(llama: Path) -> None:
    what = served(llama)
    assert what.generates and what.recipe is None
    assert what.max_length == tiny_models.MAX_LENGTH


def test_a_decoder_embeds_when_it_is_told_to(llama: Path) -> None:
    what = served(llama, "embed")
    assert not what.generates and what.recipe is not None
    assert (what.recipe.task, what.recipe.take) == ("embed", "last")
    # The language head would only take memory.
    assert what.spec.head.tied and "lm_head." in what.spec.tensors.unused


@pytest.mark.parametrize(
    ("architecture", "task", "take"),
    [
        ("LlamaModel", "embed", "last"),
        ("LlamaForSequenceClassification", "classify", "last"),
    ],
)
def test_other_things_stand_on_a_decoder(
    llama: Path, architecture: str, task: str, take: str
) -> None:
    recipe = served(llama, architectures=[architecture]).recipe
    assert recipe is not None and (recipe.task, recipe.take) == (task, take)


def test_bodies_that_were_saved_alone_have_the_states_of_transformers(
    tmp_path: Path, driver: Any
) -> None:
    """Of texts, with tensors that stay unread; of texts and images; and below another head."""
    models = {
        "MiniMaxModel": tiny_models.tiny_model("MiniMaxForCausalLM"),
        "Gemma3Model": tiny_towers.tiny_tower("gemma3", tmp_path / "whole"),
        "Qwen2VLModel": tiny_towers.tiny_tower("qwen2-vl", tmp_path / "other"),
        "GPT2Model": tiny_models.tiny_model("GPT2LMHeadModel"),
    }
    tokens = list(range(5, 30))
    for name, model in models.items():
        body = model.base_model
        body.save_pretrained(tmp_path / name)
        loaded = load_model(tmp_path / name, BuildContext(torch.device("cpu"), torch.float32))
        assert loaded.recipe is not None and loaded.recipe.task == "embed" and not loaded.generates
        with torch.inference_mode():
            expected = body(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        ours = driver(loaded, 1).hidden({0: tokens})
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3, msg=name)


def test_a_reranker_scores_pairs_or_embeds(llama: Path) -> None:
    names = ["JinaVLForRanking"]
    recipe = served(llama, architectures=names).recipe
    assert recipe is not None and (recipe.task, recipe.pairs, recipe.logit_bias) == (
        "score",
        True,
        2.65,
    )
    embedder = served(llama, "embed", architectures=names).recipe
    assert embedder is not None and (embedder.task, embedder.logit_bias) == ("embed", 0.0)
    with pytest.raises(SettingsError, match="a JinaVLForRanking scores pairs"):
        served(llama, "classify", architectures=names)


def test_extra_files_make_an_embedder(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    tiny_encoders.save_sentence_files(tmp_path, "lasttoken", max_length=30)
    what = served(tmp_path)
    assert not what.generates and what.max_length == 30
    assert served(tmp_path, "generate").generates


def test_an_encoder_embeds_or_judges(bert: Path) -> None:
    what = served(bert)
    assert isinstance(what.spec, Encoder) and what.recipe is not None
    assert (what.recipe.task, what.recipe.reach) == ("embed", "whole")
    name = "BertForSequenceClassification"
    judge = served(bert, architectures=[name]).recipe
    assert judge is not None and judge.task == "classify"
    reward = served(bert, "reward", architectures=[name]).recipe
    assert reward is not None and reward.finish == "identity"
    plain = served(bert, "embed", architectures=[name]).recipe
    assert plain is not None and plain.task == "embed" and not plain.head


@pytest.mark.parametrize("task", ["generate", "classify", "score", "reward"])
def test_what_an_encoder_without_a_head_cannot_do(bert: Path, task: Task) -> None:
    with pytest.raises(SettingsError, match=f"--task {task}"):
        served(bert, task)


def test_what_a_generator_cannot_do(llama: Path) -> None:
    with pytest.raises(SettingsError, match="Use --task embed"):
        served(llama, "classify")


def test_unknown_architectures_name_the_nearest() -> None:
    config = SimpleNamespace(architectures=["BertForPreTraining"])
    with pytest.raises(ModelError, match="closest supported architecture is Bert"):
        served_task(config, Path("/nowhere"))


def test_a_config_that_cannot_be_read(bert: Path) -> None:
    with pytest.raises(ModelError, match="relative_key"):
        served(bert, position_embedding_type="relative_key")


def test_a_body_that_needs_an_encoder_makes_no_vectors(tmp_path: Path) -> None:
    folder = tmp_path / "mllama"
    tiny_towers.tiny_tower("mllama", folder).model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="A MllamaModel makes no vectors of texts alone"):
        served(tmp_path)
    with pytest.raises(ModelError, match="Serve the Kimi_K25ForConditionalGeneration with --task"):
        served(tmp_path, architectures=["Kimi_K25Model"])


def test_no_name_is_both() -> None:
    assert not set(ENCODERS.names()) & set(ARCHITECTURES.names())
