"""Two models behind one gateway, each with its own worker and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.errors import InvalidRequest, NotFound
from baton.protocol import (
    AdapterInfo,
    Decode,
    EncodeText,
    ModelStats,
    Sampling,
    Submit,
    TokenizerInfo,
)
from baton.protocol.token_columns import unpack
from baton_gateway.catalogue import Catalogue
from baton_gateway.generation.admission import check_model
from tests.fakes.gateway_engine import BOS
from tests.fakes.hash_worker import expected_tokens
from tests.fakes.two_models import LENGTHS, LOUD, QUIET, SIZES, TwoModelSite, two_models

TOKENIZERS = [TokenizerInfo("a", 100, eos_ids=(1,)), TokenizerInfo("b", 50)]
MODELS = [ModelStats("b", 64, 40, eos_ids=(2,)), ModelStats("c", 32, 10)]


@pytest.fixture
def here() -> Iterator[TwoModelSite]:
    with two_models() as site:
        yield site


def test_an_entry_joins_what_workers_and_tokenizers_say() -> None:
    models, tokenizers = list(MODELS), list(TOKENIZERS)
    catalogue = Catalogue(lambda: models, lambda: tokenizers)
    assert catalogue.names == ["a", "b", "c"]
    assert [entry.name for entry in catalogue.entries()] == ["a", "b"]
    entry = catalogue.get("b")
    assert entry is not None and (entry.model, entry.tokenizer, entry.adapter) == ("b", "b", b"")
    assert (entry.max_model_len, entry.vocab_size, entry.eos_ids) == (64, 40, (2,))
    models.clear()
    assert catalogue.get("b") == entry, "a model whose workers restart keeps its task and limits"
    tokenizers.clear()
    assert catalogue.names == ["a", "b", "c"], "a model whose servers restart still exists"
    assert catalogue.entries() == []


@pytest.mark.row("F11.01", "F11.04")
def test_adapters_are_names_of_their_own() -> None:
    sql, taken = AdapterInfo("sql", b"1"), AdapterInfo("a", b"2")
    models = [ModelStats("a", 64, 40, adapters=(sql, taken))]
    catalogue = Catalogue(lambda: models, lambda: TOKENIZERS[:1])
    assert (catalogue.names, catalogue.models) == (["a", "sql"], ["a"])
    entry, base = check_model("sql", catalogue), check_model(None, catalogue)
    assert entry is not None and base is not None and base.name == "a" and not base.adapter
    assert (entry.name, entry.model, entry.adapter, entry.parent) == ("sql", "a", b"1", "a")
    assert (entry.max_model_len, entry.tokenizer, base.parent) == (64, "a", None)
    models.clear()
    assert catalogue.names == ["a", "sql"], "its workers restart"
    models.append(ModelStats("a", 64, 40))
    assert catalogue.names == ["a"] and catalogue.get("sql") is None, "it was unloaded"


def test_a_name_is_needed_where_there_are_several() -> None:
    assert check_model(None, Catalogue(lambda: [], lambda: [])) is None
    assert check_model("a", Catalogue(lambda: [], lambda: [])) is None
    one = check_model(None, Catalogue(lambda: [], lambda: TOKENIZERS[:1]))
    assert one is not None and one.name == "a"
    with pytest.raises(InvalidRequest) as caught:
        check_model(None, Catalogue(lambda: MODELS, lambda: TOKENIZERS))
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "model")


@pytest.mark.parametrize("name", ["A", "a ", "", "other"])
def test_a_name_is_matched_exactly(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        check_model(name, Catalogue(lambda: [], lambda: TOKENIZERS))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_both_models_are_listed(here: TwoModelSite) -> None:
    entries = here.get("/v1/models").json()["data"]
    assert {e["id"]: e["max_model_len"] for e in entries} == LENGTHS
    for entry in entries:
        assert here.get(f"/v1/models/{entry['id']}").json() == entry


def test_each_model_answers_with_its_own_tokens(here: TwoModelSite) -> None:
    prompts = {QUIET: [BOS, *b"hi there"], LOUD: [BOS, *b"HI THERE"]}
    for model in (QUIET, LOUD, QUIET, LOUD):
        given = here.complete(
            model=model,
            prompt="hi there",
            seed=3,
            max_tokens=9,
            return_token_ids=True,
            ignore_eos=True,
        ).json()
        (choice,) = given["choices"]
        sampling = Sampling(9, seed=3)
        tokens, _ = expected_tokens(prompts[model], sampling, SIZES[model])
        assert given["model"] == model and choice["prompt_token_ids"] == prompts[model]
        assert choice["token_ids"] == tokens
    submits = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
    assert [submit.model for submit in submits] == [QUIET, LOUD, QUIET, LOUD]
    for model, tokenizer in here.engine.encoders.items():
        handles = {s.handle for s in submits if s.model == model}
        decodes = [m for m in tokenizer.seen if isinstance(m, Decode)]
        assert {h for d in decodes for h in unpack(d.handles, "I")} == handles
        assert sum(isinstance(m, EncodeText) for m in tokenizer.seen) == 2


def test_limits_are_those_of_the_model(here: TwoModelSite) -> None:
    fits = {model: here.complete(model=model, prompt="x" * 250, max_tokens=1) for model in LENGTHS}
    assert [fits[QUIET].status_code, fits[LOUD].status_code] == [200, 400]
    assert "maximum context length is 200 tokens" in fits[LOUD].json()["error"]["message"]
    for model, status in ((QUIET, 200), (LOUD, 400)):
        body = {"model": model, "tokens": [150]}
        assert here.post("/detokenize", body).status_code == status


def test_an_unknown_model_is_not_found(here: TwoModelSite) -> None:
    for answer in (here.chat(model="other"), here.complete(model="other")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "model_not_found")
    assert here.get("/v1/models/other").status_code == 404
    answer = here.post("/tokenize", {"prompt": "hi"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


def test_a_model_without_its_tokenizer_is_unavailable_and_the_other_answers() -> None:
    with two_models(LOUD, service_wait_seconds=0.1) as here:
        answer = here.complete(model=LOUD)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            503,
            "No tokenizer is connected. Try again later.",
        )
        assert here.complete(model=QUIET).status_code == 200
        assert [entry["id"] for entry in here.get("/v1/models").json()["data"]] == [QUIET]
        assert here.get("/health").status_code == 200
