"""The catalogue of models: the servers and limits of each name that clients may request.

It is derived from the scheduler's `Stats` and the tokenizers' `Hello`, so it needs no
configuration: a model is served as soon as a worker and a tokenizer of it have joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from baton.protocol import (
    DEFAULT_VERSION,
    AnySpeechInfo,
    ModelStats,
    PoolingInfo,
    TokenizerInfo,
)
from baton_gateway.output_formats import OutputFormats, output_formats


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One entry of the catalogue."""

    name: str
    """Name that clients request."""
    max_model_len: int
    """Most tokens of one sequence, prompt and output together; 0 until a worker has reported it."""
    vocab_size: int
    """Size of the vocabulary; token ids of clients must be lower."""
    eos_ids: tuple[int, ...]
    media_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()
    pooling: PoolingInfo | None = None
    """Pooling task of the model; None for a model that generates text."""
    model: str = ""
    """Model whose workers and media preprocessors serve the name."""
    adapter: bytes = b""
    """Digest of the adapter that is applied to the model; empty for none."""
    parent: str | None = None
    """Name of the model that an adapter is applied to; None for a model itself."""
    paused: bool = False
    """No request runs until an operator resumes the model."""
    asleep: bool = False
    """All its workers sleep; the next request wakes them."""
    weight_version: str = DEFAULT_VERSION
    """Label of its current weights."""
    formats: OutputFormats = field(default_factory=OutputFormats)
    """Formats of the model's tool calls and thinking."""
    tokenizer: str = ""
    """Group of tokenizers: those that name this model in their `Hello`."""
    sampling_defaults: Mapping[str, int | float] = field(default_factory=dict)
    """Sampling parameters of requests that do not set them; see `with_defaults`."""
    document_first: bool = False
    """The model reads the document of a pair before the query."""
    alignment: bool = False
    """Whether its workers can report the times of tokens in a recording."""
    speech: AnySpeechInfo | None = None
    """Requests for transcripts; None if the model is not for speech to text."""
    task_prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that an embedding model reads before its input, by task."""


class Catalogue:
    """Names of models and what serves them."""

    def __init__(
        self,
        models: Callable[[], Iterable[ModelStats]],
        tokenizers: Callable[[], Iterable[TokenizerInfo]],
    ) -> None:
        """`models`: those with a present worker; `tokenizers`: the connected ones."""
        self._models, self._tokenizers = models, tokenizers
        self._all_models: set[str] = set()
        self._reports: dict[str, ModelStats] = {}
        """Model -> last report of its workers: a model whose workers restart keeps its task, its
        limits and its adapters."""

    @property
    def models(self) -> list[str]:
        """Every model since the start, sorted: a model whose servers restart still exists."""
        self._all_models.update(self._reported())
        self._all_models.update(info.model for info in self._tokenizers())
        return sorted(self._all_models)

    @property
    def names(self) -> list[str]:
        """Every name that clients may request, sorted: models and adapters. An adapter with the
        name of a model is not served."""
        models = self.models
        return sorted({*models, *(name for name, _, _ in self._all_adapters())})

    def _all_adapters(self) -> Iterator[tuple[str, bytes, str]]:
        """Name, digest and model of every adapter; model names come first."""
        for name, report in self._reported().items():
            yield from ((adapter.name, adapter.digest, name) for adapter in report.adapters)

    def _reported(self) -> Mapping[str, ModelStats]:
        self._reports.update({model.name: model for model in self._models()})
        return self._reports

    def get(self, name: str) -> ModelInfo | None:
        """Entry of a name; None while none of its tokenizers is connected."""
        if name in self.models:
            return self._model(name)
        for adapter, digest, model in self._all_adapters():
            if adapter == name:
                entry = self._model(model)
                return entry and replace(entry, name=name, adapter=digest, parent=model)
        return None

    def _model(self, name: str) -> ModelInfo | None:
        info = next((info for info in self._tokenizers() if info.model == name), None)
        return None if info is None else _entry(info, self._reported().get(name))

    def entries(self) -> list[ModelInfo]:
        """Entries of all models and adapters with a connected tokenizer, by name."""
        return [entry for name in self.names if (entry := self.get(name)) is not None]


def _entry(info: TokenizerInfo, stats: ModelStats | None) -> ModelInfo:
    return ModelInfo(
        name=info.model,
        max_model_len=stats.max_model_len if stats else 0,
        vocab_size=min(info.vocab_size, stats.vocab_size) if stats else info.vocab_size,
        eos_ids=tuple(sorted({*info.eos_ids, *(stats.eos_ids if stats else ())})),
        media_ids=frozenset(info.media_ids),
        special_ids=frozenset(info.special_ids),
        pooling=stats.pooling if stats else None,
        paused=stats is not None and stats.paused,
        asleep=stats is not None and stats.asleep,
        weight_version=stats.weight_version if stats else DEFAULT_VERSION,
        model=info.model,
        formats=output_formats(info),
        tokenizer=info.model,
        sampling_defaults=info.sampling_defaults,
        document_first=info.document_first,
        alignment=stats is not None and stats.alignment,
        speech=info.speech,
        task_prompts=info.task_prompts,
    )
