"""vLLM's `--kv-transfer-config`, mapped to our roles and transports.

The fields are those of `KVTransferConfig` in vLLM's `vllm/config/kv_transfer.py`. The scheduler
decides which worker sends KV to which, so fields that only configure that are refused rather than
ignored.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import AfterValidator

from baton.errors import SettingsError, as_value_error
from baton.protocol import Role
from baton_worker.kv_transfer.registry import TRANSPORTS

if TYPE_CHECKING:  # Avoids a cycle: the settings import this module.
    from baton_worker.config import Config


CONNECTORS: dict[str, str] = {
    "NixlConnector": "nixl",
    **{name: name for name in TRANSPORTS.names()},
}
"""vLLM's connector names and ours, by transport."""
_ELSEWHERE = {
    "LMCacheConnectorV1": "keys that are kept outside of workers",
    "MooncakeConnector": "the Mooncake transfer engine",
    "P2pNcclConnector": "NCCL between workers",
    "SharedStorageConnector": "a shared file system",
}
_ROLES: dict[str, Role] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}
_NOTHING = {
    "kv_rank": "the scheduler pairs workers",
    "kv_parallel_size": "the scheduler pairs workers",
    "engine_id": "a worker has a name, --worker.name",
    "kv_connector_module_path": "a package adds transports by the entry points `baton.transports`",
    "kv_buffer_size": "a transfer buffer has the size of the blocks that are on their way",
    "enable_permute_local_kv": "pages of either layout pass to each other",
}
"""vLLM fields without a counterpart, with the reason."""


class KVTransferConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The supported part of vLLM's JSON."""

    kv_connector: str
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    kv_connector_extra_config: dict[str, Any] = {}
    kv_ip: str = ""
    kv_port: int = 0
    kv_buffer_device: str = "cpu"
    kv_load_failure_policy: str = "recompute"

    def __post_init__(self) -> None:
        if self.kv_buffer_device != "cpu":
            raise ValueError("KV passes through memory of the host: kv_buffer_device is cpu")
        if self.kv_load_failure_policy != "recompute":
            raise ValueError("what does not arrive is computed again: the policy is recompute")

    @property
    def role(self) -> Role:
        """The requested role."""
        return _ROLES[self.kv_role]

    @property
    def transports(self) -> str:
        """The requested transports in order of preference; `tcp` comes last."""
        names = dict.fromkeys(_transport(name) for name in self._connectors())
        return ",".join(dict.fromkeys((*names, "tcp")))

    @property
    def bind_pages(self) -> str:
        """The requested bind address; empty if there is none."""
        return f"tcp://{self.kv_ip}:{self.kv_port or '*'}" if self.kv_ip else ""

    def _connectors(self) -> list[str]:
        extra = self.kv_connector_extra_config
        if self.kv_connector != "MultiConnector":
            backends = extra.get("backends", ["UCX"])
            if set(extra) - {"backends"} or backends != ["UCX"]:
                raise SettingsError(
                    f"kv_connector_extra_config {extra} means nothing here: leave it out."
                )
            return [self.kv_connector]
        return [parse_one(inner).kv_connector for inner in extra.get("connectors", [])]


def resolve(config: Config) -> Config:
    """The worker's settings with the values of `kv_transfer_config` applied.

    Raises:
        SettingsError: it contradicts another setting.
    """
    if not config.kv_transfer_config:
        return config
    outstanding = parse(config.kv_transfer_config)
    if config.role not in ("both", outstanding.role) and outstanding.role != "both":
        raise SettingsError(f"--role {config.role} contradicts kv_role {outstanding.kv_role}.")
    return config.model_copy(
        update={
            "role": outstanding.role if config.role == "both" else config.role,
            "kv_transports": outstanding.transports,
            "bind_kv": config.bind_kv or outstanding.bind_pages,
        }
    )


def _check(text: str) -> str:
    with as_value_error():
        if text:
            parse(text)
    return text


Connector: TypeAlias = Annotated[str, AfterValidator(_check)]
"""A setting: the JSON text, or empty."""


def parse(text: str) -> KVTransferConfig:
    """Parse the JSON. Raises `SettingsError` with the problem and a remedy."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise SettingsError(f"--kv-transfer-config is not a JSON object: {error}.") from error
    config = parse_one(fields)
    if not config._connectors():
        raise SettingsError("MultiConnector needs 'connectors' in kv_connector_extra_config.")
    assert config.transports, "unknown ones are refused here"
    return config


def parse_one(fields: dict[str, Any]) -> KVTransferConfig:
    """As `parse`, from a decoded object."""
    known = KVTransferConfig.__struct_fields__
    for name in fields:
        if name in _NOTHING:
            raise SettingsError(f"Leave {name} out of --kv-transfer-config: {_NOTHING[name]}.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise SettingsError(f"--kv-transfer-config has an unknown field '{name}'.{hint}")
    try:
        return msgspec.convert(fields, KVTransferConfig)
    except msgspec.ValidationError as error:
        raise SettingsError(f"--kv-transfer-config: {error}.") from error


def _transport(connector: str) -> str:
    if connector in CONNECTORS:
        return CONNECTORS[connector]
    names = ", ".join((*CONNECTORS, "MultiConnector"))
    if connector in _ELSEWHERE:
        raise SettingsError(
            f"{connector} ({_ELSEWHERE[connector]}) has no counterpart here. Known: {names}."
        )
    near = difflib.get_close_matches(connector, (*CONNECTORS, "MultiConnector"), n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise SettingsError(f"Unknown kv_connector '{connector}'. Known: {names}.{hint}")
