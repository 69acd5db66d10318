"""Tiny random models and tokenizers with odd traits switched on: built, never downloaded.

transformers and tokenizers are imported inside the functions, so that importing this file costs
nothing to the tests of services that have neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCAB_SIZE = 320
MAX_LENGTH = 256

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

# The odd traits of each architecture; every one has at least two layers.
TRAITS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": LLAMA3_ROPE,
        "tie_word_embeddings": False,
    },
    "MistralForCausalLM": {"head_dim": 16, "sliding_window": 12, "tie_word_embeddings": False},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "Qwen3ForCausalLM": {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
}


def tiny_config(architecture: str, **changes: Any) -> Any:
    """A transformers config of a three-layer model of this architecture."""
    import transformers

    model = getattr(transformers, architecture)
    return model.config_class(
        **_COMMON | TRAITS[architecture] | changes, architectures=[architecture]
    )


def tiny_model(architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 transformers model; biases and norms are random too, so none is skipped."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = tiny_config(architecture, **changes)
        model = getattr(transformers, architecture)(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.data.normal_(centre, 0.2)
    return model


def save_checkpoint(folder: Path, architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """Save a tiny model as config.json and safetensors; returns the transformers model."""
    model = tiny_model(architecture, seed=seed, **changes)
    model.save_pretrained(folder)
    return model


CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


def save_tokenizer(folder: Path) -> Path:
    """Save a byte-level BPE tokenizer with a chat template: any text round-trips.

    Ids 0.. are `SPECIAL_TOKENS` (bos 0, end 1, as the tiny models have it), then the 256 bytes
    and a few merges; all ids are below `VOCAB_SIZE`.
    """
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the relay runner hands the baton to the next runner"], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def save_model(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> Path:
    """A whole servable folder: checkpoint and tokenizer."""
    save_checkpoint(folder, architecture, **changes)
    return save_tokenizer(folder)
