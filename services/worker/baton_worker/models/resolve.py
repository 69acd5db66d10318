"""From a config to a spec: exact architecture, else an error that says what to edit."""

from __future__ import annotations

import difflib
from types import SimpleNamespace

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.models.config import fp8_block, quantises_only_kv
from baton_worker.models.families import DECLARED
from baton_worker.models.families.encoders import TABLE as ENCODERS
from baton_worker.models.spec import Decoder

ARCHITECTURES = Registry("architectures", DECLARED)


def resolve(config: SimpleNamespace, served_length: int | None = None) -> Decoder:
    """The spec of the first architecture that the config names.

    `served_length` is the longest sequence that will be served, None for all that the checkpoint
    declares: rope scaling with a short and a long form follows it.

    Raises:
        ModelError: the architecture is unknown, the checkpoint is quantised in a way that is not
            supported, or the config lacks a field.
    """
    name = _architecture(config)
    method = _quantised(config)
    if method not in (None, "mxfp4") and fp8_block(config) is None:
        raise _refusal(method)
    try:
        fields = vars(config) | {"served_length": served_length}
        spec: Decoder = ARCHITECTURES.load(name)(SimpleNamespace(**fields))
    except AttributeError as error:
        raise ModelError(f"The config of this {name} lacks a field: {error}.") from error
    if method == "mxfp4" and not any(rule.scales for rule in spec.stacked):
        raise _refusal(method)
    return spec


def _quantised(config: SimpleNamespace) -> str | None:
    """The method of a quantised checkpoint."""
    given = getattr(config, "quantization_config", None)
    if quantises_only_kv(config):
        return None
    return getattr(given, "quant_method", "an unknown method") if given else None


def _refusal(method: str | None) -> ModelError:
    return ModelError(
        f"This checkpoint is quantised with {method}, which Baton cannot load yet. "
        "Use the unquantised checkpoint, or a GGUF file of the same model."
    )


def _architecture(config: SimpleNamespace) -> str:
    named: list[str] = getattr(config, "architectures", None) or []
    for name in named:
        if name in ARCHITECTURES:
            return name
    known = ARCHITECTURES.names()
    if not named:
        raise ModelError(
            'The config names no architecture. Add one to its "architectures", for example '
            f'"LlamaForCausalLM"; docs/models.md lists the {len(known)} that Baton knows.'
        )
    raise unsupported(named[0])


def unsupported(name: str, why: str = "") -> ModelError:
    """The error for an architecture that nothing here runs; `why` transformers cannot either."""
    near = difflib.get_close_matches(name, (*ARCHITECTURES.names(), *ENCODERS), n=1, cutoff=0.0)[0]
    also = f", and {why}" if why else ""
    return ModelError(
        f"{name} is not supported yet{also}. The closest supported architecture is {near}. "
        "To add it, write its spec in baton_worker/models/families/ and a tiny config in "
        "tests/tiny.py: the parity test picks it up."
    )
