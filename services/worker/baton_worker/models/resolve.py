"""Config to spec by exact architecture name; otherwise an error that names the file to edit."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import SimpleNamespace

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.models.families import DECLARED, clip, encoders
from baton_worker.quantization.methods import formats, method
from baton_worker.spec import Decoder, Glu, Mlp
from baton_worker.spec.config_limits import suspects

ARCHITECTURES = Registry("architectures", DECLARED)
_MOST_NAMED = 5
"""Fields that a sentence names."""
_WRAPPED = {"Terratorch": "terratorch"}
"""Architectures that wrap the models of a package."""


def resolve(config: SimpleNamespace, served_length: int | None = None) -> Decoder:
    """The spec of the first architecture in the config.

    `served_length` is the maximum sequence length, None for the checkpoint's: it selects the long
    or short form of rope scaling.

    Raises:
        ModelError: the architecture is unknown, the quantisation is not supported, or the
            config lacks a field.
    """
    name = _architecture(config)
    formats(config)  # Reject unsupported quantisation before building.
    try:
        fields = vars(config) | {"served_length": served_length}
        with readable_config(name, config):
            spec: Decoder = ARCHITECTURES.load(name)(SimpleNamespace(**fields))
    except AttributeError as error:
        raise ModelError(f"The config of this {name} lacks a field: {_field(error)}.") from error
    _check(spec)
    if method(config) == "mxfp4" and not any(rule.scales for rule in spec.tensors.stacked):
        raise ModelError(
            f"This checkpoint is quantised with mxfp4, of which Baton knows no tensors in {name}. "
            "Use the unquantised checkpoint, or a GGUF file of the same model."
        )
    return spec


@contextmanager
def readable_config(name: str, config: SimpleNamespace) -> Iterator[None]:
    """What a family or a layer raises for a field of another type or value than its class has is a
    `ModelError`, with the fields that may be at fault."""
    try:
        yield
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "negative dimension" not in str(error):
            raise  # Of the device, not of the config.
        odd = suspects(config)
        where = f" ({', '.join(odd[:_MOST_NAMED])})" if odd else ""
        why = str(error).partition("\n")[0]  # PyTorch adds a trace of C++ below.
        raise ModelError(f"The config of this {name} cannot be read: {why}{where}.") from error


def _field(error: AttributeError) -> str:
    """The field that a config lacks, or what a family says of it."""
    return str(error.name if isinstance(error.obj, SimpleNamespace) else error)


def _check(spec: Decoder) -> None:
    """Check numbers that nothing else checks before memory is allocated for them."""
    numbers = {
        "hidden_size": spec.hidden,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_length,
        "the epsilon of its norms": spec.norm.eps,
    }
    for name, value in numbers.items():
        if not isinstance(value, int | float):
            raise ModelError(f"config.json: {name} must be a number, not {value!r}.")
    for _, ffn in spec.layers:
        if isinstance(ffn, Glu | Mlp) and not isinstance(ffn.intermediate, int):
            raise ModelError("config.json: intermediate_size must be an integer in each layer.")


def _architecture(config: SimpleNamespace) -> str:
    named: list[str] = getattr(config, "architectures", None) or []
    for name in named:
        if name in ARCHITECTURES:
            return name
    known = ARCHITECTURES.names()
    if not named:
        raise ModelError(
            'The config names no architecture. Add one to its "architectures", for example '
            f'"LlamaForCausalLM"; docs/models/supported.md lists the {len(known)} that Baton knows.'
        )
    raise unsupported(named[0])


def unsupported(name: str, why: str = "") -> ModelError:
    """The error for an unsupported architecture; `why` is transformers' reason."""
    if name in _WRAPPED:
        return _without(name, _WRAPPED[name])
    known = (*ARCHITECTURES.names(), *encoders.TABLE, *clip.TABLE)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    also = f", and {why}" if why else ""
    return ModelError(
        f"{name} is not supported yet{also}. The closest supported architecture is {near}. "
        "To add it, write its spec in baton_worker/models/families/ and a tiny config in "
        "tests/support/tiny_models.py: the parity test picks it up."
    )


def _without(name: str, package: str) -> ModelError:
    """The error for a package's model if the package is missing or not supported."""
    if find_spec(package) is None:
        return ModelError(
            f"{name} wraps the models of the package {package}, which is not installed here, and "
            "Baton cannot run them without it. Serve another checkpoint."
        )
    return ModelError(
        f"{name} wraps the models of the package {package}. It is installed, but nothing in Baton "
        "calls it yet. Serve another checkpoint."
    )
