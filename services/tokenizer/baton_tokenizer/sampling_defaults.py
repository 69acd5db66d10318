"""Default sampling parameters of requests: those of the checkpoint's generation_config.json, and
those of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from baton.errors import SettingsError

Source = Literal["auto", "vllm"]
"""Whether the checkpoint's recommendation is used; "vllm" selects vLLM's defaults, which are those
of OpenAI's API."""

_FILE, _OVERRIDE = "generation_config.json", "--override-generation-config"
_INSTEAD = "Correct it, or use --generation-config vllm, which does without it."


class SamplingDefaults(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Fields of generation_config.json that are also request parameters, with the same bounds."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None


def sampling_defaults(
    recommended: Mapping[str, Any], source: Source, override: str
) -> dict[str, int | float]:
    """Return the defaults by field of generation_config.json.

    Args:
        recommended: content of the checkpoint's generation_config.json.
        override: JSON object of the operator, which takes precedence; empty for none.

    Raises `SettingsError` for a value that no request may have.
    """
    fields = {name: recommended.get(name) for name in SamplingDefaults.__struct_fields__}
    chosen = _checked(fields, _FILE, _INSTEAD) if source == "auto" else {}
    return chosen | _checked(_parsed(override), _OVERRIDE, "Correct it.")


def _parsed(override: str) -> Any:
    try:
        return msgspec.json.decode(override or "{}")
    except msgspec.DecodeError as error:
        raise SettingsError(f"{_OVERRIDE} is not JSON: {error}.") from error


def _checked(fields: Any, origin: str, advice: str) -> dict[str, int | float]:
    try:
        checked = msgspec.convert(fields, SamplingDefaults)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{origin}: {error}. {advice}") from error
    defaults: dict[str, int | float] = msgspec.to_builtins(checked)
    return defaults
