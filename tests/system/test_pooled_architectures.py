"""Every encoder and reward model against transformers, through the endpoint that serves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_encoders as encoders

TEXTS = [
    "a",
    "the baton",
    "a question about rivers, and an answer about mountains",
    "the relay runner hands the baton to the next runner " * 2,
    "the baton!",
]
QUERY = "who runs with the baton?"
COSINE, DIFFERENCE = 0.9999, 1e-3


class Reference:
    """A transformers model and the tokenizer beside it."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model = model
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def inputs(self, text: str, pair: str | None = None) -> dict[str, torch.Tensor]:
        found = self._tokenizer.encode(text, pair)
        inputs = {"input_ids": torch.tensor([found.ids])}
        if getattr(self.model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = torch.tensor([found.type_ids])
        return inputs

    @torch.inference_mode()
    def states(self, text: str) -> torch.Tensor:
        """Final hidden states [n, hidden]."""
        body = self.model.base_model
        states: torch.Tensor = body(**self.inputs(text)).last_hidden_state[0]
        return states

    @torch.inference_mode()
    def logits(self, text: str, pair: str | None = None) -> torch.Tensor:
        logits: torch.Tensor = self.model(**self.inputs(text, pair)).logits[0]
        return logits


def check_vectors(here: Whole, expected: list[torch.Tensor], **fields: Any) -> None:
    """All texts in one request are what they are alone, and what the reference says."""
    answer = here.embed(TEXTS, **fields).json()
    together = [torch.tensor(entry["embedding"]) for entry in answer["data"]]
    for text, ours, reference in zip(TEXTS, together, expected, strict=True):
        alone = torch.tensor(here.embed(text, **fields).json()["data"][0]["embedding"])
        assert F.cosine_similarity(ours, reference, dim=0) > COSINE
        assert (ours - reference).abs().max() < DIFFERENCE
        assert (ours - alone).abs().max() < 1e-5


def unit(states: torch.Tensor) -> torch.Tensor:
    return F.normalize(states, dim=-1)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        pytest.param("BertModel", {}),
        pytest.param("RobertaModel", {}, marks=pytest.mark.row("P02")),
        pytest.param("RobertaForMaskedLM", {}, marks=pytest.mark.row("P03")),
        pytest.param("XLMRobertaModel", {}, marks=pytest.mark.row("P05")),
        pytest.param("GteModel", {}, marks=pytest.mark.row("P08")),
        pytest.param("GteModel", {"type_vocab_size": 0}, marks=pytest.mark.row("P08")),
        pytest.param("NomicBertModel", {}, marks=pytest.mark.row("P09")),
        pytest.param("ModernBertModel", {}),
        pytest.param("Gemma3TextModel", {}),
    ],
)
def test_an_encoder_embeds(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    """Without files that say otherwise, a vector is the first token's state, normalised."""
    reference = Reference(tmp_path, encoders.save(tmp_path, architecture, **changes))
    with whole(tmp_path) as here:
        check_vectors(here, [unit(reference.states(text)[0]) for text in TEXTS])


@pytest.mark.row("P07")
def test_gte_new_under_its_own_names(tmp_path: Path) -> None:
    """The checkpoints of the original code: a prefix, and rope scaling by a fixed factor."""
    oracle = encoders.save(tmp_path, "GteModel")
    scaling = {"type": "ntk", "factor": 2.0}
    fields = {"rope_parameters": None, "rope_theta": 20_000.0, "rope_scaling": scaling}
    names = {"embeddings.": "new.embeddings.", "encoder.": "new.encoder."}
    encoders.rewrite(tmp_path, names, architectures=["GteNewModel"], model_type="new", **fields)
    dim = 12
    powers = 40_000.0 ** (torch.arange(0, dim, 2) / dim)
    oracle.rotary_emb.inv_freq = 1.0 / powers / 2.0 ** (2 / dim)
    reference = Reference(tmp_path, oracle)
    with whole(tmp_path) as here:
        check_vectors(here, [unit(reference.states(text)[0]) for text in TEXTS])


@pytest.mark.row("P09")
def test_nomic_with_experts_under_gpt2_names(tmp_path: Path) -> None:
    """The config of the original code; every second layer is a mixture of experts."""
    oracle = NomicExperts()
    oracle.save(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with whole(tmp_path) as here:
        expected = [unit(oracle.states(tokenizer.encode(text).ids).mean(0)) for text in TEXTS]
        check_vectors(here, expected)


class NomicExperts:
    """Nomic Embed v2 written out: no library has it (arXiv:2502.07972)."""

    hidden, heads, inner, layers, experts = 32, 4, 48, 4, 4

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tensors = {
            name: torch.randn(shape, generator=generator) * 0.3
            for name, shape in self._shapes().items()
        }

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        h, inner = self.hidden, self.inner
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (encoders.VOCAB_SIZE, h),
            "embeddings.token_type_embeddings.weight": (1, h),
            "emb_ln.weight": (h,),
            "emb_ln.bias": (h,),
        }
        for layer in range(self.layers):
            at = f"encoder.layers.{layer}"
            shapes |= {f"{at}.attn.Wqkv.weight": (3 * h, h), f"{at}.attn.Wqkv.bias": (3 * h,)}
            shapes |= {f"{at}.attn.out_proj.weight": (h, h), f"{at}.attn.out_proj.bias": (h,)}
            for norm in ("norm1", "norm2"):
                shapes |= {f"{at}.{norm}.weight": (h,), f"{at}.{norm}.bias": (h,)}
            if layer % 2:
                shapes[f"{at}.mlp.router.layer.weight"] = (self.experts, h)
                shapes[f"{at}.mlp.experts.mlp.w1"] = (self.experts * inner, h)
                shapes[f"{at}.mlp.experts.mlp.w2"] = (self.experts * inner, h)
                shapes[f"{at}.mlp.experts.bias"] = (h,)
            else:
                shapes |= {f"{at}.mlp.fc1.weight": (inner, h), f"{at}.mlp.fc1.bias": (inner,)}
                shapes |= {f"{at}.mlp.fc2.weight": (h, inner), f"{at}.mlp.fc2.bias": (h,)}
        return shapes

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        encoders.save_tokenizer(folder, types=False)
        save_file(self.tensors, str(folder / "model.safetensors"))
        config = {
            "architectures": ["NomicBertModel"],
            "activation_function": "gelu",
            "n_embd": self.hidden,
            "n_head": self.heads,
            "n_layer": self.layers,
            "n_inner": self.inner,
            "n_positions": 128,
            "vocab_size": encoders.VOCAB_SIZE,
            "type_vocab_size": 1,
            "layer_norm_epsilon": 1e-5,
            "prenorm": False,
            "qkv_proj_bias": True,
            "mlp_fc1_bias": True,
            "mlp_fc2_bias": True,
            "rotary_emb_base": 10_000.0,
            "rotary_emb_fraction": 1.0,
            "moe_every_n_layers": 2,
            "moe_top_k": 2,
            "num_experts": self.experts,
        }
        (folder / "config.json").write_text(json.dumps(config))
        encoders.save_sentence_files(folder)

    def states(self, ids: list[int]) -> torch.Tensor:
        get = self.tensors.__getitem__
        x = get("embeddings.word_embeddings.weight")[ids]
        x = self._norm(x + get("embeddings.token_type_embeddings.weight")[0], "emb_ln")
        for layer in range(self.layers):
            at = f"encoder.layers.{layer}"
            x = self._norm(x + self._attention(x, f"{at}.attn"), f"{at}.norm1")
            ffn = self._experts if layer % 2 else self._plain
            x = self._norm(x + ffn(x, f"{at}.mlp"), f"{at}.norm2")
        return x

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return F.layer_norm(x, (self.hidden,), weight, bias, 1e-5)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def _attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        dim = self.hidden // self.heads
        qkv = self._linear(x, f"{name}.Wqkv").view(len(x), 3, self.heads, dim)
        query, key, value = (part.transpose(0, 1) for part in qkv.unbind(1))
        frequencies = 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
        angle = torch.outer(torch.arange(len(x)).float(), frequencies)
        query, key = (self._rotate(part, angle) for part in (query, key))
        weights = (query @ key.transpose(1, 2) / dim**0.5).softmax(-1)
        return self._linear((weights @ value).transpose(0, 1).flatten(1), f"{name}.out_proj")

    @staticmethod
    def _rotate(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def _plain(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self._linear(F.gelu(self._linear(x, f"{name}.fc1")), f"{name}.fc2")

    def _experts(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weights = F.linear(x, self.tensors[f"{name}.router.layer.weight"]).softmax(-1)
        up = self.tensors[f"{name}.experts.mlp.w1"].view(self.experts, self.inner, self.hidden)
        down = self.tensors[f"{name}.experts.mlp.w2"].view(self.experts, self.inner, self.hidden)
        rows = []
        for token, row in zip(x, weights, strict=True):
            best = row.argsort(descending=True)[:2].tolist()
            outs = [row[e] * (F.gelu(up[e] @ token) @ down[e]) for e in best]
            rows.append(sum(outs, self.tensors[f"{name}.experts.bias"]))
        return torch.stack(rows)


CROSS_ENCODERS = [
    pytest.param("BertForSequenceClassification", marks=pytest.mark.row("P01")),
    pytest.param("RobertaForSequenceClassification", marks=pytest.mark.row("P04")),
    pytest.param("XLMRobertaForSequenceClassification", marks=pytest.mark.row("P06")),
    pytest.param("GteForSequenceClassification"),
    pytest.param("NomicBertForSequenceClassification"),
    pytest.param("ModernBertForSequenceClassification"),
]


@pytest.mark.parametrize("architecture", CROSS_ENCODERS)
def test_a_cross_encoder_scores_pairs(tmp_path: Path, architecture: str) -> None:
    oracle = encoders.save(tmp_path, architecture, num_labels=1)
    check_scores(tmp_path, Reference(tmp_path, oracle))


@pytest.mark.row("P10")
def test_gte_new_scores_pairs(tmp_path: Path) -> None:
    oracle = encoders.save(tmp_path, "GteForSequenceClassification", num_labels=1)
    fields = {"architectures": ["GteNewForSequenceClassification"], "model_type": "new"}
    encoders.rewrite(tmp_path, {"gte.": "new."}, **fields)
    check_scores(tmp_path, Reference(tmp_path, oracle))


def check_scores(folder: Path, reference: Reference) -> None:
    """/score, /rerank and each pair alone agree with the sigmoid of the reference's logit."""
    expected = [float(reference.logits(QUERY, text).sigmoid()) for text in TEXTS]
    assert max(expected) - min(expected) > 0.01, "the scores of these texts do not differ"
    with whole(folder) as here:
        answer = here.post("/score", {"text_1": QUERY, "text_2": TEXTS}).json()
        together = [entry["score"] for entry in answer["data"]]
        assert together == pytest.approx(expected, abs=DIFFERENCE)
        for text, score in zip(TEXTS, together, strict=True):
            alone = here.post("/score", {"text_1": QUERY, "text_2": text}).json()["data"][0]
            assert alone["score"] == pytest.approx(score, abs=1e-5)
        ranked = here.post("/rerank", {"query": QUERY, "documents": TEXTS}).json()["results"]
        best_first = sorted(range(len(TEXTS)), key=lambda i: -together[i])
        assert [entry["index"] for entry in ranked] == best_first


@pytest.mark.row("P01")
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_a_classifier_gives_probabilities(tmp_path: Path, problem: str) -> None:
    labels = {0: "calm", 1: "glad", 2: "sad"}
    oracle = encoders.save(
        tmp_path, "BertForSequenceClassification", id2label=labels, problem_type=problem
    )
    reference = Reference(tmp_path, oracle)
    with whole(tmp_path) as here:
        answer = here.post("/classify", {"input": TEXTS}).json()["data"]
        for text, entry in zip(TEXTS, answer, strict=True):
            logits = reference.logits(text)
            single = problem.startswith("single")
            expected = logits.softmax(-1) if single else logits.sigmoid()
            assert entry["probs"] == pytest.approx(expected.tolist(), abs=DIFFERENCE)
            assert entry["label"] == labels[int(expected.argmax())]
            alone = here.post("/classify", {"input": text}).json()["data"][0]
            assert alone["probs"] == pytest.approx(entry["probs"], abs=1e-5)


STEP = "<extra_0>"


def save_reward_model(folder: Path, architecture: str, num_labels: int) -> tuple[Any, Any]:
    """A tiny Qwen2 body, and two layers over its states."""
    from safetensors.torch import load_file, save_file

    from tests.support import tiny_models

    body = tiny_models.save_checkpoint(folder, "Qwen2ForCausalLM", tie_word_embeddings=False)
    hidden = body.config.hidden_size
    with torch.random.fork_rng():
        torch.manual_seed(5)
        score = torch.nn.Sequential(
            torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, num_labels)
        )
    path = folder / "model.safetensors"
    tensors = {k: v for k, v in load_file(str(path)).items() if not k.startswith("lm_head")}
    tensors |= {f"score.{name}": value.detach() for name, value in score.named_parameters()}
    save_file(tensors, str(path))
    labels = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    encoders.rewrite(folder, {}, architectures=[architecture], id2label=labels)
    encoders.save_tokenizer(folder, types=False, special=STEP)
    return body.model, score


@pytest.mark.row("P11")
@pytest.mark.parametrize("budget", [2048, 16])
def test_a_reward_is_that_of_the_last_token(tmp_path: Path, budget: int) -> None:
    """Whole or in chunks: only the last state counts."""
    body, score = save_reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    reference = Reference(tmp_path, body)
    with whole(tmp_path, worker={"max_num_batched_tokens": budget}) as here:
        answer = here.post("/pooling", {"input": TEXTS}).json()["data"]
        for text, entry in zip(TEXTS, answer, strict=True):
            with torch.inference_mode():
                expected = score(reference.states(text)[-1]).tolist()
            assert entry["data"] == pytest.approx(expected, abs=DIFFERENCE)
            alone = here.post("/pooling", {"input": text}).json()["data"][0]
            assert alone["data"] == pytest.approx(entry["data"], abs=1e-4)


@pytest.mark.row("P12")
@pytest.mark.parametrize("budget", [2048, 16])
def test_every_step_has_a_reward(tmp_path: Path, budget: int) -> None:
    """Probabilities at the token that ends a step, in texts with none, one and several."""
    body, score = save_reward_model(tmp_path, "Qwen2ForProcessRewardModel", 2)
    reference = Reference(tmp_path, body)
    solutions = [
        f"run{STEP}hand over the baton to the next runner{STEP}run{STEP}",
        f"the relay runner hands the baton to the next{STEP}",
        "no step at all",
        f"a{STEP}{STEP}b",
    ]
    with whole(tmp_path, worker={"max_num_batched_tokens": budget}) as here:
        answer = here.post("/pooling", {"input": solutions}).json()["data"]
        for text, entry in zip(solutions, answer, strict=True):
            ids = reference.inputs(text)["input_ids"][0]
            states = reference.states(text)[ids == 5]
            with torch.inference_mode():
                expected = score(states).softmax(-1)
            assert np.shape(entry["data"]) == ((len(states), 2) if len(states) else (0,))
            for row, wanted in zip(entry["data"], expected.tolist(), strict=True):
                assert row == pytest.approx(wanted, abs=DIFFERENCE)
            alone = here.post("/pooling", {"input": text}).json()["data"][0]["data"]
            assert np.array(alone) == pytest.approx(np.array(entry["data"]), abs=1e-4)


@pytest.mark.row("P13", "F23.05")
def test_gritlm_generates_and_embeds(tmp_path: Path) -> None:
    """Text from states that look back; vectors from states that see all, instructions left out."""
    from tests.support import tiny_models

    oracle = tiny_models.save_checkpoint(tmp_path, "MistralForCausalLM", sliding_window=None)
    encoders.rewrite(tmp_path, {}, architectures=["GritLM"])
    encoders.save_tokenizer(tmp_path, types=False)
    reference = Reference(tmp_path, oracle)
    told = [f"<|user|>\nfind it\n<|embed|>\n{text}" for text in TEXTS]
    with whole(tmp_path) as here:
        for asked in (TEXTS, told):
            answer = here.embed(asked).json()["data"]
            for text, given, entry in zip(TEXTS, asked, answer, strict=True):
                ids = reference.inputs(given)["input_ids"][0].tolist()
                start = marked(tmp_path, ids) if asked is told else 0
                expected = unit(both_ways(oracle, ids)[start:].mean(0))
                ours = torch.tensor(entry["embedding"])
                assert F.cosine_similarity(ours, expected, dim=0) > COSINE, text
                alone = torch.tensor(here.embed(given).json()["data"][0]["embedding"])
                assert (ours - alone).abs().max() < 1e-5
        body = {"model": here.model, "prompt": TEXTS[1], "temperature": 0, "max_tokens": 8}
        fields = {"logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        choice = here.post("/v1/completions", body | fields).json()["choices"][0]
        ids = reference.inputs(TEXTS[1])["input_ids"]
        said = oracle.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=-1)
        assert choice["token_ids"] == said[0, ids.shape[1] :].tolist()
    with whole(tmp_path, worker={"task": "embed"}) as alone:
        [ours] = alone.embed(TEXTS[2]).json()["data"]
        expected = unit(
            both_ways(oracle, reference.inputs(TEXTS[2])["input_ids"][0].tolist()).mean(0)
        )
        assert F.cosine_similarity(torch.tensor(ours["embedding"]), expected, dim=0) > COSINE
        assert alone.post("/v1/completions", body).status_code == 400


def marked(folder: Path, ids: list[int]) -> int:
    """Tokens up to the end of the mark, by decoding ever longer beginnings."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = (n for n in range(len(ids)) if "<|embed|>\n" in tokenizer.decode(ids[:n]))
    return next(ends)


@torch.inference_mode()
def both_ways(oracle: Any, ids: list[int]) -> torch.Tensor:
    """The states of a Mistral whose mask hides nothing."""
    mask = torch.zeros(1, 1, len(ids), len(ids))
    out = oracle.model(torch.tensor([ids]), attention_mask=mask, use_cache=False)
    states: torch.Tensor = out.last_hidden_state[0]
    return states
