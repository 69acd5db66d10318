"""Settings of the tokenizer."""

from __future__ import annotations

from pathlib import Path

from baton.settings import Settings, setting
from baton_tokenizer.sampling_defaults import Source


class Config(Settings, prefix="tokenizer"):
    """Where the service listens and what it bounds."""

    bind: str = setting("", "network", advanced=True)
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = setting("", "network", advanced=True)
    """Address announced to Redis; empty means the bound one."""
    chat_template: Path | None = setting(None, "model")
    """Jinja file that replaces the checkpoint's chat template."""
    tool_call_parser: str = setting("auto", "model")
    """Format in which the model writes tool calls, by vLLM's names; auto reads it off the chat
    template or the checkpoint's response_template, none leaves calls in the text."""
    reasoning_parser: str = setting("auto", "model")
    """The same for the model's thinking."""
    generation_config: Source = setting("auto", "model")
    """Sampling parameters of requests that do not give them: auto takes what the checkpoint's
    generation_config.json recommends, vllm takes the defaults of OpenAI's API."""
    override_generation_config: str = setting("", "model")
    """JSON object of such parameters, stronger than the checkpoint's: temperature, top_p, top_k,
    min_p, repetition_penalty, max_new_tokens."""
    max_decode_states: int = setting(16384, "limits", advanced=True, ge=1)
    """Sequences with decode state; the longest unused is dropped and rebuilt from its log."""
    max_encode_tokens: int = setting(1_048_576, "limits", advanced=True, ge=1)
    """Longest text that is encoded, in tokens, when a request names no limit of its own."""
    max_queued_requests: int = setting(1024, "limits", ge=1)
    """Encode requests that may wait; more are refused as overload."""
