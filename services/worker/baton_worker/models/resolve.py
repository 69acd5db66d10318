"""From a config to a spec: exact architecture, else an error that says what to edit."""

from __future__ import annotations

import difflib
from types import SimpleNamespace

from baton.errors import ModelError
from baton.registry import Registry
from baton_worker.models.families import DECLARED
from baton_worker.models.spec import Decoder

ARCHITECTURES = Registry("architectures", DECLARED)


def resolve(config: SimpleNamespace) -> Decoder:
    """The spec of the first architecture that the config names.

    Raises:
        ModelError: the architecture is unknown, the checkpoint is quantised in a way that is not
            supported, or the config lacks a field.
    """
    name = _architecture(config)
    if getattr(config, "quantization_config", None):
        method = getattr(config.quantization_config, "quant_method", "an unknown method")
        raise ModelError(
            f"This checkpoint is quantised with {method}, which Baton cannot load yet. "
            "Use the unquantised checkpoint, or a GGUF file of the same model."
        )
    try:
        spec: Decoder = ARCHITECTURES.load(name)(config)
    except AttributeError as error:
        raise ModelError(f"The config of this {name} lacks a field: {error}.") from error
    return spec


def _architecture(config: SimpleNamespace) -> str:
    named: list[str] = getattr(config, "architectures", None) or []
    for name in named:
        if name in ARCHITECTURES:
            return name
    known = ARCHITECTURES.names()
    if not named:
        raise ModelError(f"The config names no architecture. Known: {', '.join(known)}.")
    near = difflib.get_close_matches(named[0], known, n=1, cutoff=0.0)[0]
    raise ModelError(
        f"{named[0]} is not supported yet; the closest supported architecture is {near}. "
        "To add it, write its spec in baton_worker/models/families/ and a tiny config in "
        "tests/tiny.py: the parity test picks it up."
    )
