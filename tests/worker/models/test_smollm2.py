"""The default model against transformers on the same dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.checkpoint.gguf_header import read_metadata
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.checkpoint.quantized_loading import as_floats
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.adapter import read_adapter
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model

CPU = torch.device("cpu")
NUM_PROMPTS = 12
NUM_TOKENS = 32
NUM_ALONE = 8
"""Tokens of a prompt that has the step for itself."""


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> LoadedModel:
    return load_model(smollm2, BuildContext(CPU, torch.float32))


@pytest.fixture(scope="module")
def oracle(smollm2: Path, loaded: LoadedModel) -> Any:
    """transformers' Llama, filled with the same tensors by their Hugging Face names."""
    import transformers

    c = loaded.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters=vars(c.rope_parameters),
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = dict(as_floats(open_checkpoint(smollm2).tensors(loaded.spec)))
    unexpected = model.load_state_dict(tensors, strict=False)
    assert unexpected.unexpected_keys == [] and unexpected.missing_keys == ["lm_head.weight"]
    return model


@pytest.fixture(scope="module")
def prompts(smollm2: Path, assets: Path) -> list[list[int]]:
    """Real questions of very different lengths, as ids of the model's own vocabulary."""
    lines = (assets / "prompts" / "mt_bench_question.jsonl").read_text().splitlines()
    texts = [json.loads(line)["turns"][0] for line in lines[: 6 * NUM_PROMPTS : 6]]
    tokenizer = vocabulary(smollm2)
    prompts = [tokenizer.encode(text).ids for text in texts]
    assert len(prompts) == NUM_PROMPTS and max(map(len, prompts)) > 4 * min(map(len, prompts))
    return prompts


def vocabulary(path: Path) -> Any:
    """The byte-level BPE vocabulary inside the GGUF file."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    metadata = read_metadata(path)
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


@torch.inference_mode()
def greedy_choices(oracle: Any, prompt: list[int], output: list[int]) -> list[int]:
    """What transformers would say after the prompt and each prefix of the output.

    All equal to the output if and only if its own greedy generation is the output.
    """
    tokens = torch.tensor([prompt + output[:-1]])
    logits = oracle(tokens, use_cache=False, logits_to_keep=len(output)).logits[0]
    choices: list[int] = logits.argmax(-1).tolist()
    return choices


@pytest.fixture(scope="module")
def together(loaded: LoadedModel, prompts: list[list[int]], driver: Any) -> list[list[int]]:
    """All prompts as one ragged batch."""
    run = driver(loaded, NUM_PROMPTS, page_size=16)
    outputs: list[list[int]] = run.greedy(prompts, NUM_TOKENS)
    return outputs


@pytest.mark.slow
@pytest.mark.row("T01")
def test_one_ragged_batch_equals_transformers(
    oracle: Any, prompts: list[list[int]], together: list[list[int]]
) -> None:
    for prompt, output in zip(prompts, together, strict=True):
        assert len(output) == NUM_TOKENS
        assert greedy_choices(oracle, prompt, output) == output


@pytest.mark.slow
@pytest.mark.row("T01")
def test_each_prompt_alone_equals_the_batch(
    loaded: LoadedModel, prompts: list[list[int]], together: list[list[int]], driver: Any
) -> None:
    """The first one over several pages, the others over the end of their prompt."""
    run = driver(loaded, 1, page_size=16)
    for number, (prompt, output) in enumerate(zip(prompts, together, strict=True)):
        run.lengths, count = [0], NUM_ALONE if number else NUM_TOKENS
        assert run.greedy([prompt], count) == [output[:count]], f"prompt {number}"


@pytest.mark.slow
@pytest.mark.row("F11.03", "F11.05")
def test_real_adapters_answer_as_with_peft(
    smollm2: Path, assets: Path, oracle: Any, prompts: list[list[int]], driver: Any
) -> None:
    """Three trained adapters in one step, over weights of four bits."""
    from peft import PeftModel

    folders = sorted((assets / "lora-smollm-135m").iterdir())
    column = TokenAdapters(len(folders), 2048, CPU)
    loaded = load_model(smollm2, BuildContext(CPU, torch.float32, adapters=column))
    assert isinstance(loaded.model, Model) and len(folders) == 3
    targets, prompt = LoraTargets(loaded.model, loaded.spec), prompts[0]
    for slot, folder in enumerate(folders):
        targets.put(slot, read_adapter(folder, targets, 16).pairs)
    column.write(np.repeat([0, -1, 1, 2], len(prompt)))
    ours = driver(loaded, 4).step(dict.fromkeys(range(4), prompt))
    tuned = PeftModel.from_pretrained(oracle, folders[0], "0")
    for number, folder in enumerate(folders[1:], start=1):
        tuned.load_adapter(folder, str(number))
    moved = []
    for row, name in ((0, "0"), (2, "1"), (3, "2")):
        tuned.set_adapter(name)
        with torch.inference_mode():
            wanted = tuned(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(ours[row], wanted, rtol=0, atol=0.02)
        moved.append((ours[row] - ours[1]).abs().max())
    with torch.inference_mode(), tuned.disable_adapter():
        torch.testing.assert_close(
            ours[1], tuned(torch.tensor([prompt])).logits[0], rtol=0, atol=0.02
        )
    assert min(moved) > 0.5
