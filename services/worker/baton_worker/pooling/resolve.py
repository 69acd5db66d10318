"""Selects a checkpoint's recipe from its architecture, config and extra files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

from baton.errors import ModelError, SettingsError
from baton_worker.pooling.labels import num_labels
from baton_worker.pooling.prm_step_token import read_step_id
from baton_worker.pooling.recipe import Finish, PoolingRecipe, Take
from baton_worker.pooling.sentence import SentenceFiles
from baton_worker.spec import (
    Decoder,
    Dense,
    DualEncoder,
    Encoder,
)
from baton_worker.structured_output.vocabulary import Vocabulary

Config: TypeAlias = SimpleNamespace
Task = Literal["auto", "generate", "embed", "classify", "score", "reward"]
TAKES: dict[str, Take] = {"mean": "mean", "cls": "first", "last": "last", "max": "max"}
"""Values of the setting `pooling`, besides "auto"."""
_FINISHES: dict[str, Finish] = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.modules.linear.Identity": "identity",
}
"""Class names in sentence-transformers' CrossEncoder."""


def embedding(
    c: Config, spec: Decoder, files: SentenceFiles | None, pooling: str = "auto"
) -> PoolingRecipe:
    """An embedding recipe: from the extra files or GGUF metadata, else the first token's state of
    an encoder and the last token's of a decoder, normalised."""
    whole = isinstance(spec, Encoder)
    take: Take = "first" if whole else "last"
    take = TAKES.get(getattr(c, "pooling_mode", ""), take)
    dense = files.dense if files else _stored_dense(c)
    if files is not None:
        take = files.take
    return PoolingRecipe(
        task="embed",
        take=TAKES.get(pooling, take),
        finish="normalize" if files is None or files.normalize else "identity",
        width=dense[-1].outputs if dense else spec.embedding.width or spec.hidden,
        head=dense,
        whole=whole,
        matryoshka=bool(getattr(c, "is_matryoshka", False) or _sizes(c)),
        sizes=_sizes(c),
        max_length=files.max_length if files else 0,
    )


def _stored_dense(c: Config) -> tuple[Dense, ...]:
    """Dense layers that a GGUF file holds; those of other checkpoints are in files of their own."""
    dense = getattr(c, "dense", None)
    return dense if isinstance(dense, tuple) else ()


def compared(
    spec: DualEncoder, files: SentenceFiles | None, task: Task, pooling: str
) -> PoolingRecipe:
    """Normalised embeddings of texts or images, pooled by the model itself.

    Raises:
        ModelError: the extra files require another pooling.
        SettingsError: the settings require another pooling.
    """
    if files is not None:
        raise ModelError("A model with a tower for images pools by itself: remove modules.json.")
    if task not in ("auto", "embed"):
        raise SettingsError(f"--task {task}: this model makes vectors. Use --task embed.")
    if pooling != "auto":
        raise SettingsError(f"--pooling {pooling}: this model pools by itself. Use --pooling auto.")
    width, length = spec.projection.outputs, spec.text_length
    return PoolingRecipe("embed", "first", "normalize", width, whole=True, max_length=length)


def gritlm(c: Config, spec: Decoder, folder: Path) -> PoolingRecipe:
    """GritLM (Muennighoff et al. 2024, arXiv:2402.09906): the mean over the tokens after the
    instruction, with bidirectional attention over the whole text."""
    pieces = Vocabulary.read(folder, spec.vocab).pieces
    width, mark = spec.hidden, b"<|embed|>\n"
    return PoolingRecipe("embed", "mean", "normalize", width, whole=True, mark=mark, pieces=pieces)


def classification(c: Config, spec: Decoder, task: Task) -> PoolingRecipe:
    """Label scores; a single label makes a cross-encoder."""
    count = num_labels(c)
    score = count == 1 if task == "auto" else task == "score"
    if score and count != 1:
        raise SettingsError(
            f"--task score: this checkpoint has {count} labels, and a score is one. "
            "Use --task classify."
        )
    is_encoder = isinstance(spec, Encoder)
    head = (Dense("score", spec.hidden, count, bias=False),)
    return PoolingRecipe(
        task="score" if score else "classify",
        take=_take(spec),
        finish=_finish(c, count),
        width=count,
        head=spec.classifier if isinstance(spec, Encoder) else head,
        whole=is_encoder,
        labels=_labels(c, count),
        pairs=is_encoder or score,
    )


def as_reward(recipe: PoolingRecipe) -> PoolingRecipe:
    """Raw scores of a classifier as rewards."""
    return PoolingRecipe(
        task="reward",
        take=recipe.take,
        finish="identity",
        width=recipe.width,
        head=recipe.head,
        whole=recipe.whole,
        labels=recipe.labels,
    )


def reward(c: Config, spec: Decoder, folder: Path) -> PoolingRecipe:
    """Qwen2.5-Math-RM (arXiv:2409.12122): two layers over the last token's state."""
    count = num_labels(c)
    return PoolingRecipe("reward", "last", "identity", count, _two_layers(spec, count))


def process_reward(c: Config, spec: Decoder, folder: Path) -> PoolingRecipe:
    """Qwen2.5-Math-PRM (arXiv:2501.07301): probabilities (bad, good) at every step token."""
    step_id, count = read_step_id(folder), num_labels(c)
    head = _two_layers(spec, count)
    return PoolingRecipe("reward", "steps", "softmax", count, head, step_id=step_id)


REWARDS: dict[str, Callable[[Any, Decoder, Path], PoolingRecipe]] = {
    "Qwen2ForRewardModel": reward,
    "Qwen2ForProcessRewardModel": process_reward,
}
"""Architectures with a reward head of their own."""


def jina_vl(spec: Decoder) -> PoolingRecipe:
    """jina-reranker-m0: two layers over the state of the token behind the pair, and a sigmoid whose
    middle is the published constant."""
    head = _two_layers(spec, 1)
    return PoolingRecipe("score", "last", "sigmoid", 1, head, logit_bias=2.65, pairs=True)


RANKERS: dict[str, Callable[[Decoder], PoolingRecipe]] = {"JinaVLForRanking": jina_vl}
"""Decoders with a head of their own that scores pairs."""


def _two_layers(spec: Decoder, count: int) -> tuple[Dense, ...]:
    width = spec.hidden
    return (Dense("score.0", width, width, activation="relu"), Dense("score.2", width, count))


def _take(spec: Decoder) -> Take:
    if isinstance(spec, Encoder):
        return "mean" if spec.classify_from == "mean" else "first"
    return "last"


def _finish(c: Config, count: int) -> Finish:
    """The final function: from transformers' loss type, else sentence-transformers' activation."""
    kind = getattr(c, "problem_type", None)
    if kind == "regression":
        return "identity"
    if kind == "multi_label_classification":
        return "sigmoid"
    trained = getattr(getattr(c, "sentence_transformers", None), "activation_fn", None)
    trained = trained or getattr(c, "sbert_ce_default_activation_function", None)
    if kind is None and trained is not None:
        if trained not in _FINISHES:
            known = ", ".join(_FINISHES)
            raise SettingsError(f"The config asks for {trained}. Known: {known}.")
        return _FINISHES[trained]
    return "sigmoid" if count == 1 else "softmax"


def _labels(c: Config, count: int) -> tuple[str, ...]:
    named = vars(c.id2label) if getattr(c, "id2label", None) else {}
    return tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(count))


def _sizes(c: Config) -> tuple[int, ...]:
    return tuple(sorted(getattr(c, "matryoshka_dimensions", None) or ()))
