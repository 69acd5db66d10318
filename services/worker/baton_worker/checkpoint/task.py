"""The task of a checkpoint (text, or a kind of vectors) and the body that it uses.

An architecture's name is the body's name followed by the head's.

    LlamaForCausalLM                   text; with `task=embed`, or beside a modules.json, vectors
    LlamaModel                         vectors
    LlamaForSequenceClassification     labels, or with one label a score
    Gemma3Model, of text and images    vectors
    BertModel, RobertaForMaskedLM      vectors
    Gemma3TextModel                    vectors, of a decoder or an encoder
    CLIPModel                          vectors, of texts and of images
    Qwen2ForProcessRewardModel         rewards
    JinaVLForRanking                   a score
    GritLM                             text, and vectors
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from baton.errors import ModelError, SettingsError
from baton.registry import Registry
from baton_worker.checkpoint.formats.safetensors import with_saved_head
from baton_worker.models.families import clip, encoders
from baton_worker.models.resolve import ARCHITECTURES, readable_config, resolve
from baton_worker.pooling.recipe import PoolingRecipe
from baton_worker.pooling.resolve import (
    RANKERS,
    REWARDS,
    Task,
    as_reward,
    classification,
    compared,
    embedding,
    gritlm,
)
from baton_worker.pooling.sentence import SentenceFiles, read_sentence_files
from baton_worker.spec import CrossAttention, Decoder, DualEncoder

ENCODERS = Registry("encoders", encoders.TABLE | clip.TABLE)
_CLASSIFIER = "ForSequenceClassification"
_SUFFIXES = (_CLASSIFIER, "ForRewardModel", "ForProcessRewardModel", "Model")
_WHOLE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Suffixes of architectures that have the body of one with another head."""
_HEADS = ("lm_head.", "score.")
_BODIES = {"JinaVLForRanking": "Qwen2VLForConditionalGeneration"}
"""Architectures with a body whose name theirs does not tell."""
_UNREADABLE = {"Kimi_K25Model": "Kimi_K25ForConditionalGeneration"}
"""Bodies that transformers saves alone under names that it does not read again, and the
architectures that hold them."""
_BOTH = "GritLM"
"""A Mistral trained for both generation and embedding."""


@dataclass(frozen=True, slots=True)
class ServedTask:
    """The spec to build and its outputs."""

    spec: Decoder
    recipe: PoolingRecipe | None
    """The pooling recipe; None if the model only generates."""
    files: SentenceFiles | None = None
    generates: bool = True

    @property
    def max_length(self) -> int:
        """Maximum sequence length in tokens; texts alone may be shorter than the positions
        allow."""
        recipe = self.recipe
        if isinstance(self.spec, DualEncoder):  # An image may have more tokens than a text.
            return self.spec.max_length
        most = recipe.max_length if recipe is not None and not self.generates else 0
        return min(self.spec.max_length, most or self.spec.max_length)


def served_task(
    config: SimpleNamespace,
    path: Path,
    task: Task = "auto",
    pooling: str = "auto",
    served_length: int | None = None,
) -> ServedTask:
    """Decide the task of a checkpoint. `served_length` is that of `resolve`.

    Raises:
        ModelError: the architecture is unknown, or its extra files are not supported.
        SettingsError: the checkpoint does not support the requested task.
    """
    name = _name(config)
    if name is None:
        return ServedTask(resolve(config, served_length), None)  # Raises and lists the known names.
    if name == _BOTH:
        return _both(config, path, task, served_length)
    files = read_sentence_files(path)
    generates = name in ARCHITECTURES
    if generates and (task == "generate" or (task == "auto" and files is None)):
        return ServedTask(with_saved_head(resolve(config, served_length), path), None)
    if task == "generate":
        raise SettingsError(f"--task generate: a {name} has no head that makes text.")
    spec = _body(name, config, served_length)
    recipe = _recipe(name, config, spec, path, files, task, pooling)
    return ServedTask(_headless(spec, recipe), recipe, files, generates=False)


def _both(config: SimpleNamespace, path: Path, task: Task, served_length: int | None) -> ServedTask:
    """Text and vectors from one model, or only the requested one."""
    body = SimpleNamespace(**vars(config) | {"architectures": ["MistralForCausalLM"]})
    spec = resolve(body, served_length)
    if task == "generate":
        return ServedTask(spec, None)
    if task not in ("auto", "embed"):
        raise SettingsError(f"--task {task}: a {_BOTH} generates and embeds, and nothing else.")
    recipe = gritlm(config, spec, path)
    if task == "embed":
        return ServedTask(_headless(spec, recipe), recipe, generates=False)
    return ServedTask(spec, recipe)


def is_listed(config: SimpleNamespace) -> bool:
    """Whether the config's architecture has a spec, or the config names none."""
    return _name(config) is not None or not getattr(config, "architectures", None)


def _name(config: SimpleNamespace) -> str | None:
    """The first architecture of the config that can be served."""
    for name in getattr(config, "architectures", None) or []:
        is_listed = name in ARCHITECTURES or name in ENCODERS or name == _BOTH
        if is_listed or _decoder_of(name, config):
            return str(name)
    return None


def _decoder_of(name: str, config: SimpleNamespace) -> str | None:
    """`LlamaForCausalLM` for `LlamaModel` and other heads on a Llama body. A config with a part for
    text is that of a model with an encoder: `Gemma3ForConditionalGeneration` for `Gemma3Model`."""
    if name in _BODIES:
        return _BODIES[name]
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            bases = [stem + whole for whole in _WHOLE]
            if hasattr(config, "text_config"):
                bases.reverse()
            bases.append(f"{stem.removesuffix('Text')}ForCausalLM")
            return next((base for base in bases if base in ARCHITECTURES), None)
    return None


def _body(name: str, config: SimpleNamespace, served_length: int | None) -> Decoder:
    if whole := _UNREADABLE.get(name):
        raise ModelError(
            f"A {name} that was saved alone has names of tensors that not even transformers reads. "
            f"Serve the {whole} with --task embed."
        )
    if name in ENCODERS:
        try:
            with readable_config(name, config):
                spec: Decoder = ENCODERS.load(name)(config)
        except AttributeError as error:
            raise ModelError(f"The config of this {name} cannot be read: {error}.") from error
        return spec
    base = name if name in ARCHITECTURES else _decoder_of(name, config)
    spec = resolve(SimpleNamespace(**vars(config) | {"architectures": [base]}), served_length)
    listens = spec.style == "conditioned"
    if base != name and (listens or any(isinstance(m, CrossAttention) for m, _ in spec.layers)):
        raise ModelError(f"A {name} makes no vectors of texts alone. Serve a {base}.")
    return spec


def _recipe(
    name: str,
    config: SimpleNamespace,
    spec: Decoder,
    path: Path,
    files: SentenceFiles | None,
    task: Task,
    pooling: str,
) -> PoolingRecipe:
    if isinstance(spec, DualEncoder):
        return compared(spec, files, task, pooling)
    judges = name.endswith(_CLASSIFIER) or name in REWARDS or name in RANKERS
    if task == "embed" or not judges:
        if task not in ("auto", "embed"):
            raise SettingsError(f"--task {task}: a {name} has no head for it. Use --task embed.")
        return embedding(config, spec, files, pooling)
    if name in REWARDS:
        if task not in ("auto", "reward"):
            raise SettingsError(f"--task {task}: a {name} gives rewards. Use --task reward.")
        return REWARDS[name](config, spec, path)
    if name in RANKERS:
        if task not in ("auto", "score"):
            raise SettingsError(f"--task {task}: a {name} scores pairs. Use --task score.")
        return RANKERS[name](spec)
    recipe = classification(config, spec, "auto" if task == "reward" else task)
    return as_reward(recipe) if task == "reward" else recipe


def _headless(spec: Decoder, recipe: PoolingRecipe) -> Decoder:
    """The body with a tied language head, which takes no memory and loads nothing."""
    in_use = tuple(f"{layer.name}." for layer in recipe.head)
    unused = tuple(head for head in _HEADS if not any(n.startswith(head) for n in in_use))
    head = replace(spec.head, tied=True, bias=False)
    tensors = replace(spec.tensors, unused=(*spec.tensors.unused, *unused))
    return replace(spec, head=head, tensors=tensors)
