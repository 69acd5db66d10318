"""Tiny random encoders, classifiers and reward models, each with a tokenizer of its kind.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCAB_SIZE = 320
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
LAYER_TYPES = ["full_attention", "sliding_attention", "sliding_attention"]
TRAITS: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_act": "gelu", "type_vocab_size": 2},
    "Roberta": {"type_vocab_size": 1, "hidden_act": "gelu"},
    "XLMRoberta": {"type_vocab_size": 1, "hidden_act": "gelu"},
    "Gte": {"type_vocab_size": 1},
    "NomicBert": {"type_vocab_size": 2},
    "Gemma3Text": {
        "layer_types": LAYER_TYPES,
        "sliding_window": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.15,
        "use_bidirectional_attention": True,
    },
    "ModernBert": {
        "layer_types": LAYER_TYPES,
        "local_attention": 8,
        "norm_bias": True,
        "classifier_pooling": "mean",
        "classifier_bias": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "cls_token_id": 0,
        "sep_token_id": 2,
    },
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CORPUS = [
    "the relay runner hands the baton to the next runner",
    "a question about rivers, and an answer about mountains",
]


def model(architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 transformers model; biases and norms are random too, so none is skipped."""
    import torch
    import transformers

    family = next(name for name in sorted(TRAITS, key=len)[::-1] if architecture.startswith(name))
    built = getattr(transformers, architecture)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = built.config_class(
            **_COMMON | TRAITS[family] | changes, architectures=[architecture]
        )
        made = built(config).eval()
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.data.normal_(centre, 0.2)
    return made


def save(folder: Path, architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """Save a tiny model with its tokenizer; returns the transformers model."""
    made = model(architecture, seed=seed, **changes)
    made.save_pretrained(folder)
    save_tokenizer(folder, types=architecture.startswith(("Bert", "Nomic")))
    return made


def save_tokenizer(folder: Path, *, types: bool, special: str = "") -> Path:
    """Byte-level BPE that frames a text as <s> A </s> and a pair as <s> A </s> B </s>.

    With `types` the second text is of token type 1, as BERT has it. `special` is one more special
    token, with id 5.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*SPECIAL, *([special] if special else [])],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    second = 1 if types else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair=f"<s> $A </s> $B:{second} </s>:{second}",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def save_sentence_files(
    folder: Path, mode: str = "mean_tokens", *, normalize: bool = True, max_length: int = 0
) -> None:
    """The files of sentence-transformers: modules.json, pooling, perhaps a longest length."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"st.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    if max_length:
        settings = json.dumps({"max_seq_length": max_length})
        (folder / "sentence_bert_config.json").write_text(settings)


def save_dense(folder: Path, inputs: int, outputs: int) -> Any:
    """Put a dense module between pooling and normalisation; returns its torch layer."""
    import torch
    from safetensors.torch import save_file

    layer = torch.nn.Linear(inputs, outputs)
    place = folder / "2_Dense"
    place.mkdir()
    tensors = {f"linear.{name}": value.detach() for name, value in layer.named_parameters()}
    save_file(tensors, str(place / "model.safetensors"))
    settings = {
        "in_features": inputs,
        "out_features": outputs,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (place / "config.json").write_text(json.dumps(settings))
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "st.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return layer


def rewrite(folder: Path, names: dict[str, str], **config: Any) -> None:
    """Rename tensors by the beginnings of their names, and change fields of the config."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    for old, new in names.items():
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, str(path))
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
