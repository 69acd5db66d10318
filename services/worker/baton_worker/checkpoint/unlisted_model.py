"""A model without a spec, which runs in the code of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from baton.logs import logger
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.loaded_model import LoadedModel, held_bytes
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import transformers_backend
from baton_worker.models.resolve import unsupported
from baton_worker.pooling.resolve import Task

log = logger(__name__)


def check_unlisted(
    config: SimpleNamespace, task: Task, context: BuildContext, is_split: bool, *, patched: bool
) -> None:
    """Raises `ModelError` for what the code of transformers cannot do here."""
    name = config.architectures[0]
    if patched:
        raise unsupported(name, "only a spec takes single tensors")
    if why := _needs_spec(task, context, is_split):
        raise unsupported(name, why)


def _needs_spec(task: Task, context: BuildContext, is_split: bool) -> str | None:
    """The first requested feature that needs a spec; None if there is none."""
    if task == "embed" or context.quantization != "none":
        return "only a spec can be embedded or quantised"
    if context.codes is not None:
        return f"only a spec can have {context.codes} pages"
    return "only a spec can be cut for several ranks" if is_split else None


def load_unlisted(path: Path, checkpoint: Checkpoint, context: BuildContext) -> LoadedModel:
    """Load an architecture without a spec; see `models.transformers_backend`.

    Raises:
        ModelError: transformers cannot run it on paged attention.
    """
    config = checkpoint.config
    if why := transformers_backend.refuses(config):
        raise unsupported(config.architectures[0], why)
    model, spec = transformers_backend.load_transformers_model(path, config, context)
    log.warning(
        "%s has no spec here: it runs in the slower code of transformers", config.architectures[0]
    )
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        config=config,
        max_length=spec.max_length,
        vocab_size=spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=held_bytes(model),
    )
