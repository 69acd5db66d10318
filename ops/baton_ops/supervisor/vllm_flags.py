"""Flags of `vllm serve`: what each of them is called here, or what to use in its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Row:
    """One flag of vLLM."""

    flag: str
    ours: str = ""
    """The flag that it becomes, without dashes."""
    value: Callable[[str], str] = str
    """Its value in the unit of ours."""
    switch: bool = False
    """It takes no value."""
    holds: tuple[str, ...] = ()
    """Values that are the case here in any event; of a switch, ("",)."""
    instead: str = "Baton does not have this yet"
    """What to do when it asks for anything else."""

    def become(self, value: str) -> tuple[str, str] | None:
        """Our flag and its value; None where nothing has to be said.

        Raises:
            SettingsError: it has no meaning here.
        """
        if value.lower() in self.holds:
            return None
        if self.ours:
            return self.ours, self.value(value)
        said = f"{self.flag} {value}".strip()
        raise SettingsError(f"{said}: {self.instead}.")


def _gibibytes(text: str) -> str:
    try:
        return str(int(float(text) * 1024**3))
    except ValueError as error:
        raise SettingsError(f"--swap-space takes GiB as a number (got '{text}').") from error


def _no(text: str) -> str:
    return "False"


def _always(*flags: str) -> tuple[Row, ...]:
    return tuple(Row(flag, switch=True, holds=("",)) for flag in flags)


def _refused(instead: str, *flags: str, switch: bool = False) -> tuple[Row, ...]:
    return tuple(Row(flag, switch=switch, instead=instead) for flag in flags)


_TLS = "terminate TLS in a proxy in front of the gateway"
_PARSERS = "Baton has no parsers of tool calls yet: the text of the model is returned as it is"
_REASONING = "Baton has no reasoning parsers yet: the text of the model is returned as it is"
_LORA = "Baton has no LoRA adapters yet: serve a checkpoint that they are merged into"
_DRAFTS = "Baton has no speculative decoding yet"
_COMPILED = "nothing is compiled by torch here; --cuda-graphs and --max-cudagraph-capture-size"
_LOADER = "the loader finds the format of a checkpoint itself: leave it out"
_PROXY = "set it in a proxy in front of the gateway"
_REMOTE = "code of a checkpoint is never run; a supported architecture needs none"
_HOSTS = "start workers on the other hosts and name the scheduler with --fleet-address"

ROWS = (
    Row("-tp", "tensor-parallel-size"),
    Row("-dp", "data-parallel-size"),
    Row("-dcp", "decode-context-parallel-size"),
    Row("-q", "quantization"),
    Row("-ep", "enable-expert-parallel", switch=True, value=lambda text: "True"),
    Row("--swap-space", "host-cache-bytes", _gibibytes),
    Row("--enforce-eager", "cuda-graphs", _no, switch=True),
    Row("--no-enforce-eager", "cuda-graphs", lambda text: "True", switch=True),
    Row("--uvicorn-log-level", "log-level"),
    Row("--guided-decoding-backend", "grammar-backend", holds=("auto",)),
    Row("--structured-outputs-config.backend", "grammar-backend", holds=("auto",)),
    Row("--collect-detailed-traces", instead="use --otlp-endpoint"),
    Row("--otlp-traces-endpoint", "otlp-endpoint"),
    Row("--download-dir", "cache-dir"),
    Row("--pipeline-parallel-size", holds=("1",), instead="use --tensor-parallel-size"),
    Row("-pp", holds=("1",), instead="use --tensor-parallel-size"),
    Row("--max-logprobs", holds=("20",), instead="up to 20 per token can be asked for"),
    Row("--load-format", holds=("auto",), instead=_LOADER),
    Row("--tokenizer-mode", holds=("auto",), instead="the tokenizer is read from the checkpoint"),
    Row("--config-format", holds=("auto", "hf"), instead=_LOADER),
    Row("--model-impl", holds=("auto",), instead="the architecture decides: leave it out"),
    Row("--distributed-executor-backend", holds=("mp",), instead=_HOSTS),
    Row("--nnodes", holds=("1",), instead=_HOSTS),
    *_always("--enable-chunked-prefill", "--async-scheduling", "--disable-log-requests"),
    *_always("--no-enable-log-requests", "--disable-custom-all-reduce"),
    *_always("--no-trust-remote-code", "--no-enable-lora", "--disable-uvicorn-access-log"),
    *_refused(
        "prompts are always split: a larger --max-num-batched-tokens makes it rare",
        "--no-enable-chunked-prefill",
        switch=True,
    ),
    *_refused("use --plans-in-flight 1", "--no-async-scheduling", switch=True),
    *_refused("use --no-metrics", "--disable-log-stats", switch=True),
    *_refused("prompts are never logged", "--enable-log-requests", switch=True),
    *_refused(_REMOTE, "--trust-remote-code", switch=True),
    *_refused(_PARSERS, "--enable-auto-tool-choice", switch=True),
    *_refused(_PARSERS, "--tool-call-parser", "--tool-parser-plugin"),
    *_refused(_REASONING, "--reasoning-parser"),
    *_refused(_REASONING, "--enable-reasoning", switch=True),
    *_refused(_DRAFTS, "--speculative-config"),
    *_refused(_LORA, "--enable-lora", switch=True),
    *_refused(_LORA, "--lora-modules", "--max-loras", "--max-lora-rank"),
    *_refused(_COMPILED, "-O", "--compilation-config", "--cuda-graph-sizes"),
    *_refused(_COMPILED, "--cudagraph-capture-sizes"),
    *_refused(_TLS, "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs"),
    *_refused(_PROXY, "--root-path", "--allowed-origins", "--middleware"),
    *_refused("requests have a seed of their own: the field seed", "--seed"),
    *_refused("write it into the model: org/name@revision", "--revision"),
    *_refused("the tokenizer comes from the checkpoint", "--tokenizer", "--tokenizer-revision"),
    *_refused("use --mm-preprocess.max-items", "--limit-mm-per-prompt"),
    *_refused("requests name their template arguments", "--chat-template-content-format"),
    *_refused("use --num-gpu-blocks-override", "--kv-cache-memory-bytes"),
    *_refused("weights do not move to the host", "--cpu-offload-gb"),
    *_refused("edit config.json", "--hf-overrides", "--rope-scaling"),
)
TABLE = {row.flag: row for row in ROWS}
"""By the flag as it is written."""
