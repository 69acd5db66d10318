"""vLLM's JSON, and what is wrong with it."""

from __future__ import annotations

import json

import pytest

from baton.errors import SettingsError
from baton_worker.config import Config
from baton_worker.speculative.config import SpeculativeConfig, parse


def test_fields_of_vllm() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    assert parse(json.dumps(given)) == SpeculativeConfig(4, prompt_lookup_max=3)
    model = '{"model": "a", "num_speculative_tokens": 3, "quantization": "int4"}'
    assert parse(model) == SpeculativeConfig(3, "draft_model", "a", "int4")
    assert parse("") is None and Config().speculative_config == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1]", "not a JSON object"),
        ('{"num_speculative_tokens": 0}', "1 to 64"),
        ('{"method": "ngram"}', "num_speculative_tokens"),
        ('{"num_speculative_tokens": 3, "method": "engram"}', "Did you mean 'ngram'"),
        ('{"num_speculative_token": 3}', "Did you mean 'num_speculative_tokens'"),
        ('{"num_speculative_tokens": 3, "disable_by_batch_size": 4}', "while they pay"),
        ('{"num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}', "where the target"),
        ('{"num_speculative_tokens": 3, "method": "ngram", "model": "a"}', "takes no 'model'"),
        ('{"num_speculative_tokens": 3, "method": "draft_model"}', "needs 'model'"),
        ('{"num_speculative_tokens": 3, "quantization": "int4"}', "there is none"),
        ('{"num_speculative_tokens": 3, "prompt_lookup_min": 9}', "does not hold"),
        ('{"num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 1}', "2 tokens or more"),
        ('{"num_speculative_tokens": 3, "suffix_decoding_min_token_prob": 2}', "0 to 1"),
        ('{"num_speculative_tokens": 3, "suffix_decoding_max_spec_factor": 0}', "above 0"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(given: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(given)
    with pytest.raises(ValueError, match=message):
        Config(speculative_config=given)
