"""Settings of the tokenizer."""

from __future__ import annotations

from pathlib import Path

from baton.settings import Settings, setting
from baton_tokenizer.sampling_defaults import Source


class Config(Settings, prefix="tokenizer"):
    """Address of the service and its limits."""

    bind: str = setting("", "network", advanced=True)
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = setting("", "network", advanced=True)
    """Address announced to Redis; empty means the bound one."""
    chat_template: Path | None = setting(None, "model")
    """Jinja file that replaces the checkpoint's chat template."""
    tool_call_parser: str = setting("auto", "model")
    """Format of the model's tool calls, by vLLM's names; auto detects it from the chat template or
    the checkpoint's response_template, none leaves calls in the text."""
    reasoning_parser: str = setting("auto", "model")
    """Format of the model's thinking, by vLLM's names; auto detects it from the chat template or
    the checkpoint's response_template, none leaves thinking in the text."""
    generation_config: Source = setting("auto", "model")
    """Default sampling parameters of requests: auto uses the checkpoint's generation_config.json,
    vllm uses the defaults of OpenAI's API."""
    override_generation_config: str = setting("", "model")
    """JSON object of default sampling parameters, which take precedence over the checkpoint's:
    temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens."""
    max_decode_states: int = setting(16384, "limits", advanced=True, ge=1)
    """Maximum sequences with decode state; the least recently used is dropped and rebuilt from its
    log when needed."""
    max_encode_tokens: int = setting(1_048_576, "limits", advanced=True, ge=1)
    """Maximum tokens of a text if the request sets no limit."""
    max_queued_requests: int = setting(1024, "limits", ge=1)
    """Maximum waiting encode requests; more are refused as overload."""
