"""`--speculative-config`: vLLM's JSON.

The fields are those of `SpeculativeConfig` in vLLM's `vllm/config/speculative.py`. Fields without a
meaning here are refused rather than ignored.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import AfterValidator

from baton.errors import SettingsError, as_value_error
from baton_worker.speculative import DRAFT_WEIGHTS, PROPOSERS
from baton_worker.speculative.token_tree import TokenTree

_FLAG = "--speculative-config"
Quantize: TypeAlias = Literal["none", "int8", "int4"]
"""Values of the setting `quantization`."""
MOST_DRAFTS = 64
"""Draft tokens of one row in one step: counts of tokens are bytes."""
_NOTHING = {
    "draft_tensor_parallel_size": "drafts are made where the target samples",
    "tensor_parallel_size": "drafts are made where the target samples",
    "revision": "a revision is a part of the name, org/name@revision",
    "code_revision": "no code of a checkpoint is run",
    "draft_load_config": "the format of a checkpoint is found",
    "draft_sample_method": "a draft has the random number of the token in its place",
    "max_model_len": "drafts are made for sequences as long as their model was trained for",
    "disable_by_batch_size": "drafts are only made while they pay",
    "disable_padded_drafter_batch": "rows have as many drafts as they have",
    "rejection_sample_method": "a draft is accepted if the target samples it",
    "attention_backend": "--attention-backend is for all models of a worker",
    "moe_backend": "--moe-backend is for all models of a worker",
    "parallel_drafting": "each method drafts in the one way that it has",
    "enforce_eager": "--no-cuda-graphs is for all",
    "use_local_argmax_reduction": "the kernels of each machine are chosen when it starts",
}
"""vLLM's fields without a counterpart, with the reason."""


class SpeculativeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The supported part of vLLM's JSON."""

    num_speculative_tokens: int
    """Most draft tokens of a sequence in one step."""
    method: str = "ngram"
    """A name in `PROPOSERS`; without one it is `draft_model` if there is a `model`."""
    model: str = ""
    """The model that drafts: a directory, a GGUF file, or a name of a hub."""
    quantization: Quantize | None = None
    """To what its weights are rounded at load; by default as those of the target."""
    prompt_lookup_max: int = 5
    """Longest n-gram that is looked for."""
    prompt_lookup_min: int = 2
    """Shortest."""
    suffix_decoding_max_tree_depth: int = 24
    """Longest match that is looked for."""
    suffix_decoding_max_cached_requests: int = 10_000
    """Sequences that have ended and are remembered; 0: each looks in itself and in those that
    run."""
    suffix_decoding_max_spec_factor: float = 1.0
    """Drafts per token of the match."""
    suffix_decoding_min_token_prob: float = 0.1
    """Least share of the places of the match that go on with the draft."""
    speculative_token_tree: str = ""
    """The shape of drafts, see `TokenTree.parse`; empty: a chain."""

    def __post_init__(self) -> None:
        if bool(self.model) != (self.method in DRAFT_WEIGHTS) and self.method != "mtp":
            verb = "needs" if self.method in DRAFT_WEIGHTS else "takes no"
            raise ValueError(f"the method {self.method} {verb} 'model', which drafts")
        if self.quantization is not None and not self.model:
            raise ValueError("quantization is of a 'model' that drafts, and there is none")
        if not 1 <= self.num_speculative_tokens <= MOST_DRAFTS:
            raise ValueError(f"num_speculative_tokens is 1 to {MOST_DRAFTS}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ValueError("1 <= prompt_lookup_min <= prompt_lookup_max does not hold")
        if self.suffix_decoding_max_tree_depth < 2 or self.suffix_decoding_max_cached_requests < 0:
            raise ValueError("a suffix has 2 tokens or more, and a cache 0 requests or more")
        if not 0 <= self.suffix_decoding_min_token_prob <= 1:
            raise ValueError("suffix_decoding_min_token_prob is 0 to 1")
        if self.suffix_decoding_max_spec_factor <= 0:
            raise ValueError("suffix_decoding_max_spec_factor is above 0")
        if self.speculative_token_tree:
            self._check_tree(TokenTree.parse(self.speculative_token_tree))

    @property
    def tree(self) -> TokenTree:
        """The shape of drafts."""
        if self.speculative_token_tree:
            return TokenTree.parse(self.speculative_token_tree)
        return TokenTree.chain(self.num_speculative_tokens)

    def _check_tree(self, tree: TokenTree) -> None:
        if self.num_speculative_tokens != len(tree.nodes):
            raise ValueError(
                f"num_speculative_tokens is {self.num_speculative_tokens}, and "
                f"speculative_token_tree has {len(tree.nodes)} nodes: give the same number"
            )
        if self.method not in DRAFT_WEIGHTS and not tree.is_chain:
            raise ValueError(
                f"the method {self.method} copies text, which is a chain: leave "
                "speculative_token_tree out, or use a method with a 'model'"
            )


def parse(text: str) -> SpeculativeConfig | None:
    """Parse the JSON; None for an empty text. Raises `SettingsError` with the problem and a
    remedy."""
    if not text:
        return None
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{_FLAG} is not a JSON object: {error}.") from error
    for name in fields:
        _check_field(name)
    if fields.get("model"):
        fields.setdefault("method", "draft_model")
    if "method" in fields:
        PROPOSERS.check(str(fields["method"]))
    try:
        return msgspec.convert(fields, SpeculativeConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{_FLAG}: {error}.") from error


def _check_field(name: str) -> None:
    known = SpeculativeConfig.__struct_fields__
    if name in _NOTHING:
        raise SettingsError(f"Leave {name} out of {_FLAG}: {_NOTHING[name]}.")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise SettingsError(f"{_FLAG} has an unknown field '{name}'.{hint}")


def _check(text: str) -> str:
    with as_value_error():
        parse(text)
    return text


SpeculativeJson: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: the JSON text, or empty."""
