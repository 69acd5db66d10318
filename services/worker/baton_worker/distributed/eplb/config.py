"""`--eplb-config`: vLLM's JSON.

The fields are those of `EPLBConfig` in vLLM's `vllm/config/parallel.py`. Values without a meaning
here are refused rather than ignored.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import AfterValidator

from baton.errors import SettingsError, as_value_error

_FLAG = "--eplb-config"
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class EplbConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of expert load balancing."""

    window_size: _Positive = 1000
    """Steps over which the tokens of each expert are counted."""
    step_interval: _Positive = 3000
    """Steps between two rearrangements."""
    num_redundant_experts: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Replicas that a layer has beside one of each expert, on all ranks together."""
    log_balancedness: bool = False
    """Log how evenly the tokens of steps are distributed over ranks."""
    log_balancedness_interval: _Positive = 1
    """Steps between two such lines."""
    use_async: bool = True
    """Move the weights of a rearrangement over several steps; otherwise before one."""
    policy: str = "default"
    """The placement algorithm: `default`, that of DeepSeek."""
    communicator: str | None = None
    """Backend that transfers weights: None, the connection of the group."""


def parse(text: str) -> EplbConfig:
    """Parse the JSON; the defaults for an empty text. Raises `SettingsError` with the problem and a
    remedy."""
    if not text:
        return EplbConfig()
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{_FLAG} is not a JSON object: {error}.") from error
    for name in fields:
        _check_field(name)
    try:
        config = msgspec.convert(fields, EplbConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{_FLAG}: {error}.") from error
    _check_values(config)
    return config


def _check_field(name: str) -> None:
    known = EplbConfig.__struct_fields__
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else f" It has {', '.join(known)}."
        raise SettingsError(f"{_FLAG} has an unknown field '{name}'.{hint}")


def _check_values(config: EplbConfig) -> None:
    if config.policy != "default":
        raise SettingsError(f"{_FLAG}: there is one policy, default. Leave policy out.")
    if config.communicator is not None:
        raise SettingsError(
            f"{_FLAG}: weights travel over the connection of the group, which --all2all-backend "
            "uses. Leave communicator out."
        )


def _check(text: str) -> str:
    with as_value_error():
        parse(text)
    return text


EplbJson: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: the JSON text, or empty."""
