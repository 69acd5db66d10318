"""Flags of `vllm serve`: the equivalent flag here, or what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import SettingsError
from baton_ops.supervisor.vllm_refusals import REFUSED


@dataclass(frozen=True, slots=True)
class Row:
    """One flag of vLLM."""

    flag: str
    ours: str = ""
    """The equivalent flag, without dashes."""
    value: Callable[[str], str] = str
    """Converts its value to our unit."""
    switch: bool = False
    """It has no value."""
    holds: tuple[str, ...] = ()
    """Values that are always in effect here; of a switch, ("",)."""
    instead: str = "Baton does not have this yet"
    """What to do instead of any other value."""

    def become(self, value: str) -> tuple[str, str] | None:
        """Our flag and its value; None if nothing needs to be set.

        Raises:
            SettingsError: it has no equivalent here.
        """
        if value.lower() in self.holds:
            return None
        if self.ours:
            return self.ours, self.value(value)
        flag = f"{self.flag} {value}".strip()
        raise SettingsError(f"{flag}: {self.instead}.")


def _gibibytes(text: str) -> str:
    try:
        return str(int(float(text) * 1024**3))
    except ValueError as error:
        raise SettingsError(f"Give GiB as a number (got '{text}').") from error


def _no(text: str) -> str:
    return "False"


def _yes(text: str) -> str:
    return "True"


def _holding(*flags: str) -> tuple[Row, ...]:
    return tuple(Row(flag, switch=True, holds=("",)) for flag in flags)


_HOSTS = "start workers on the other hosts and name the scheduler with --fleet-address"
_LOADER = "the loader finds the format of a checkpoint itself: leave it out"

ROWS = (
    Row("-tp", "tensor-parallel-size"),
    Row("-pp", "pipeline-parallel-size"),
    Row("-dp", "data-parallel-size"),
    Row("-dcp", "decode-context-parallel-size"),
    Row("-q", "quantization"),
    Row("-ep", "enable-expert-parallel", switch=True, value=_yes),
    Row("-asc", "gateways"),
    Row("--api-server-count", "gateways"),
    Row("--device-memory-utilization", "gpu-memory-utilization"),
    Row("--device-ids", "gpu"),
    Row("--sse-keep-alive-interval", "keep-alive-seconds"),
    Row("--swap-space", "host-cache-bytes", _gibibytes),
    Row("--kv-offloading-size", "host-cache-bytes", _gibibytes),
    Row("--enforce-eager", "cuda-graphs", _no, switch=True),
    Row("--no-enforce-eager", "cuda-graphs", _yes, switch=True),
    Row("--disable-log-stats", "metrics", _no, switch=True),
    Row("--disable-hybrid-kv-cache-manager", "hybrid-kv-cache", _no, switch=True),
    Row("--uvicorn-log-level", "log-level"),
    Row("--guided-decoding-backend", "grammar-backend", holds=("auto",)),
    Row("--structured-outputs-config.backend", "grammar-backend", holds=("auto",)),
    Row("--otlp-traces-endpoint", "otlp-endpoint"),
    Row("--download-dir", "cache-dir"),
    Row("--max-logprobs", holds=("20",), instead="requests can ask for up to 20 per token"),
    Row("--logprobs-mode", holds=("raw_logprobs",), instead="they are raw log-probabilities"),
    Row("--tokenizer-mode", holds=("auto",), instead="the tokenizer is read from the checkpoint"),
    Row("--config-format", holds=("auto", "hf"), instead=_LOADER),
    Row("--model-impl", holds=("auto",), instead="the architecture decides: leave it out"),
    Row("--lora-dtype", holds=("auto",), instead="adapters have the dtype of the model"),
    Row("--runner", holds=("auto", "generate"), instead="use --task"),
    Row("--convert", holds=("auto", "none"), instead="use --task"),
    Row("--seed", holds=("0",), instead="requests have a seed of their own: the field seed"),
    Row("--prefix-caching-hash-algo", holds=("sha256",), instead="blocks are named by SHA-256"),
    Row("--distributed-executor-backend", holds=("mp",), instead=_HOSTS),
    Row("--nnodes", holds=("1",), instead=_HOSTS),
    Row("--node-rank", holds=("0",), instead=_HOSTS),
    Row("--stream-interval", holds=("1",), instead="every token is sent as it comes"),
    Row("--response-role", holds=("assistant",), instead="answers are those of the assistant"),
    *_holding("--enable-chunked-prefill", "--disable-log-requests"),
    *_holding("--no-enable-log-requests", "--disable-custom-all-reduce", "--log-error-stack"),
    *_holding("--disable-uvicorn-access-log", "--enable-request-id-headers"),
    *_holding("--use-tqdm-on-load", "--no-use-tqdm-on-load", "--enable-prompt-tokens-details"),
    *_holding("--disable-frontend-multiprocessing", "--enable-auto-tool-choice"),
    *_holding("--enable-reasoning", "--enable-sleep-mode", "--enable-server-load-tracking"),
    *(
        Row(flag, switch=flag in refusal.switches, instead=refusal.instead)
        for refusal in REFUSED
        for flag in (*refusal.switches, *refusal.flags)
    ),
)
TABLE = {row.flag: row for row in ROWS}
"""By the flag as written."""


def holds_negated(flag: str) -> bool:
    """Whether it is "--no-x" of a refused switch x, and so always in effect."""
    row = TABLE.get("--" + flag.removeprefix("--no-")) if flag.startswith("--no-") else None
    return row is not None and row.switch and not row.ours and not row.holds
