"""How often a draft model's token is the target's, by how both draw from one random number.

`python -m tests.benchmarks.noise_coupling` compares, at positions of sampled answers of the default
model, three probabilities that target and draft agree: with inverse CDF in the order of the
vocabulary (what is served), with Gumbel-max noise keyed by the token, and the most that any
coupling can reach. Drafts are the model's own first layers, and the model with coarser weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.checkpoint.hub import resolve
from baton.settings import Settings

TEMPERATURE, ANSWER, LEAST = 0.8, 40, 2e-4
QUESTIONS = (
    "Compose an engaging travel blog post about a recent trip to Hawaii.",
    "Why do we need to go to Mars?",
    "Describe what superposition means in quantum physics.",
    "Write a Python function that returns the most common words of a file.",
)
Shares = npt.NDArray[np.float64]


def agreements(target: Shares, draft: Shares) -> tuple[float, float, float]:
    """Probabilities that both draw one token: inverse CDF, Gumbel-max (tokens of at least `LEAST`
    in both), the most there can be."""
    one, two = np.cumsum(target), np.cumsum(draft)
    low = np.maximum(np.append(0, one[:-1]), np.append(0, two[:-1]))
    inverse = np.maximum(0, np.minimum(one, two) - low).sum()
    likely = np.flatnonzero(np.minimum(target, draft) > LEAST)
    gumbel = sum(1 / np.maximum(target / target[i], draft / draft[i]).sum() for i in likely)
    return float(inverse), float(gumbel), float(np.minimum(target, draft).sum())


def coarsen(model: Any) -> None:
    """Round the weights of all layers to seven values in groups of 32, in place."""
    with torch.no_grad():
        for layer in model.model.layers:
            for weight in layer.parameters():
                if weight.ndim == 2:
                    groups = weight.view(weight.shape[0], -1, 32)
                    step = groups.abs().amax(-1, keepdim=True) / 3
                    groups.copy_((groups / step).round() * step)


def main() -> None:
    """Print a line per draft."""
    path = resolve(Settings())
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    layers = model.model.layers
    torch.manual_seed(0)
    texts = []
    for question in QUESTIONS:
        turn = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(
            turn, add_generation_prompt=True, return_tensors="pt", return_dict=False
        )
        asked: dict[str, Any] = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0}
        answer = model.generate(ids, max_new_tokens=ANSWER, min_new_tokens=ANSWER, **asked)
        texts.append((ids.shape[1], answer))

    def shares() -> list[Shares]:
        with torch.inference_mode():
            logits = [model(text).logits[0, first - 1 : -1] for first, text in texts]
        return [(part.double() / TEMPERATURE).softmax(-1).numpy() for part in logits]

    target = shares()

    def report(name: str) -> None:
        pairs = zip(np.concatenate(target), np.concatenate(shares()), strict=True)
        found = np.array([agreements(*pair) for pair in pairs]).mean(0)
        print(name, *(f"{value:.3f}" for value in found), flush=True)

    for count in (28, 24, 16):
        model.model.layers = layers[:count]
        report(f"first {count} of {len(layers)} layers:")
    model.model.layers = layers
    coarsen(model)
    report("weights in seven values:")


if __name__ == "__main__":
    main()
