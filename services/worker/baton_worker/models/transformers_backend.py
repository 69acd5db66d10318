"""Unlisted architectures: transformers' modelling code over our pages.

Every transformers model with a pluggable attention interface (`attention.transformers_hook`) runs
without code of its own. It is slower than a spec, since nothing is fused, but has the same
interface. After loading, a short text is run in chunks beside another one and must match
transformers' own output; models that keep state outside of attention, or mix the rows of a batch,
are rejected.

Code in a checkpoint is never run.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.selector import AttentionSelector
from baton_worker.attention.transformers_hook import (
    NAME,
    CallRecorder,
    PagedHandler,
    attend,
    attention_handler,
)
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import KVCache
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.pooling.pooler import Pooler
from baton_worker.spec import (
    Attention,
    Decoder,
    Head,
    Mask,
    Norm,
    Scores,
    Sinks,
)

_LENGTH_DEPENDENT = {"dynamic", "longrope", "su"}
"""Rope types that transformers recomputes for the longest row of a batch, which would make outputs
depend on the batch."""
_TOLERANCES = {torch.float32: 1e-3}
_ROUNDED = 0.2
"""Tolerated relative error of logits in the trial: for float32, and for narrower dtypes."""


class TransformersModel(nn.Module):
    """A causal language model of transformers with the interface of `models.decoder.Model`."""

    def __init__(
        self, causal: Any, calls: Sequence[AttentionSpec], attention: AttentionSelector
    ) -> None:
        super().__init__()
        self.causal = causal
        self.body = getattr(causal, causal.base_model_prefix)
        self._stub = _HiddenStates()
        # Logits come from the whole model, because it may scale or cap them.
        setattr(causal, causal.base_model_prefix, self._stub)
        self._calls, self._attention = list(calls), attention
        self.dtype: torch.dtype = causal.dtype
        self.pooler: Pooler | None = None
        self.progress = 0
        """Number of attention layers run since construction, for watchdogs."""

    def layers(self) -> list[Layer]:
        """Empty: its layers are not Baton's."""
        return []

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        cache: KVCache,
        texts: tuple[Texts, ...] = (),
        media: MediaEmbeddings | None = None,
    ) -> Tensor:
        """See `models.decoder.Model.forward`; without whole texts and media."""
        assert not texts and media is None, "a model without a spec takes neither"
        cache.begin(batch)
        handler = PagedHandler(batch, self._calls, cache.layers, cache.groups.of, self._attention)
        with attention_handler(handler):
            out = self.body(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        self.progress += handler.num_calls
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] rows of `forward`'s result to float32 [R, vocab]."""
        self._stub.hidden = hidden[None]
        dummy = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        logits: Tensor = self.causal(input_ids=dummy, use_cache=False).logits[0]
        return logits.to(torch.float32)


class _HiddenStates(nn.Module):
    """Replaces the body and returns the given hidden states."""

    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> Any:
        return _Output(self.hidden)


class _Output:
    """The output of a body, with hidden states only."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


def refuses(config: SimpleNamespace) -> str | None:
    """Why transformers cannot run this architecture here, as half a sentence; None if it may."""
    name = next(iter(getattr(config, "architectures", None) or []), "")
    if importlib.util.find_spec("transformers") is None:
        return "transformers, which might know it, is not installed"
    import transformers

    model = getattr(transformers, name, None)
    if model is None and getattr(config, "auto_map", None):
        return "the checkpoint brings its own code, which Baton does not run"
    if model is None:
        return f"transformers {transformers.__version__} does not know it either"
    if not _generates(model):
        return "transformers has it, but not as a model that continues text"
    if not model.is_backend_compatible() or getattr(model, "_is_stateful", False):
        return "transformers has it, but its attention cannot be replaced by a paged one"
    if getattr(config, "quantization_config", None):
        return "transformers has it, but Baton reads quantised weights for its own specs only"
    if _LENGTH_DEPENDENT & set(_rope_kinds(vars(_text_config(config)))):
        return "its rope depends on the length of the longest row in a batch"
    return None


def _generates(model: Any) -> bool:
    body = inspect.signature(model.forward).parameters
    return hasattr(model, "generate") and {"input_ids", "position_ids"} <= body.keys()


def _text_config(config: SimpleNamespace) -> SimpleNamespace:
    """The part of a config that is about the decoder, where it has parts."""
    part: SimpleNamespace = getattr(config, "text_config", None) or config
    return part


def _rope_kinds(fields: dict[str, Any]) -> Iterator[str]:
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name)
        for parameters in (rope, *vars(rope).values()) if isinstance(rope, SimpleNamespace) else ():
            if isinstance(parameters, SimpleNamespace):
                yield str(
                    getattr(parameters, "rope_type", None) or getattr(parameters, "type", "default")
                )


def load_transformers_model(
    path: Path, config: SimpleNamespace, context: BuildContext
) -> tuple[TransformersModel, Decoder]:
    """Load a checkpoint accepted by `refuses`, and test it over such pages.

    Raises:
        ModelError: its tensors do not fit, a layer needs more than paged attention, or the
            trial fails.
    """
    causal = _load(path, config, context.dtype).to(context.device)
    try:
        return _tried(causal, config, context)
    except ModelError:
        raise
    except Exception as error:
        # Third-party code may raise any exception here.
        raise ModelError(
            f"The trial of {type(causal).__name__} in transformers' own code failed with "
            f"{type(error).__name__}: {error}. It needs a spec."
        ) from error


def _tried(
    causal: Any, config: SimpleNamespace, context: BuildContext
) -> tuple[TransformersModel, Decoder]:
    texts = _trial_texts(causal.config.get_text_config().vocab_size, causal.device)
    recorder = CallRecorder(context.layout)
    with torch.inference_mode():
        expected = [causal(input_ids=text[None], use_cache=False).logits[0] for text in texts]
        _plug_in(causal)
        with attention_handler(recorder):
            causal(input_ids=texts[0][None], use_cache=False)
    _check_windows(_text_config(config), recorder.calls)
    spec = _spec(causal, recorder)
    model = TransformersModel(causal, recorder.calls, context.attention)
    _try(model, spec, texts, expected, context.layout)
    return model, spec


def _load(path: Path, config: SimpleNamespace, dtype: torch.dtype) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    architecture = getattr(transformers, config.architectures[0])
    try:
        causal, info = architecture.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        # Third-party code may raise any exception here.
        what = f"{type(error).__name__}: {error}"
        raise ModelError(f"transformers cannot load {path}: {what}") from error
    wrong = [f"{kind}: {sorted(info[kind])[:8]}" for kind in _WRONG if info[kind]]
    if wrong:
        raise ModelError(f"The checkpoint does not fit its architecture: {'; '.join(wrong)}.")
    return causal.eval().requires_grad_(False)


_WRONG = ("missing_keys", "unexpected_keys", "mismatched_keys")


def _plug_in(causal: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    causal.set_attn_implementation(NAME)


def _check_windows(config: SimpleNamespace, calls: Sequence[AttentionSpec]) -> None:
    """Reject windows that exist only in transformers' masks: paged attention would ignore them."""
    kinds = getattr(config, "layer_types", None) or []
    declared = kinds.count("sliding_attention")
    if not kinds and getattr(config, "use_sliding_window", True):
        declared = int(bool(getattr(config, "sliding_window", None)))
    windowed = sum(call.window is not None for call in calls)
    chunks = "chunked_attention" in kinds or getattr(config, "attention_chunk_size", None)
    if chunks or windowed < declared:
        raise ModelError(
            "Its layers see a part of the text only, and say so in masks of their own; "
            "paged attention cannot follow them."
        )


def _spec(causal: Any, recorder: CallRecorder) -> Decoder:
    """The spec for the rest of the worker: the pages of each attention call."""
    c = causal.config.get_text_config()
    layers = tuple(
        (
            Attention(
                call.num_heads,
                call.num_kv_heads,
                call.head_dim,
                call.scale,
                rope=None,
                mask=Mask(call.window),
                scores=Scores(call.softcap),
                sinks=Sinks() if call.sinks else None,
            ),
            None,
        )
        for call in recorder.calls
    )
    return Decoder(
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        layers=layers,
        norm=Norm(0.0),
        head=Head(tied=bool(getattr(c, "tie_word_embeddings", False))),
        style="transformers",
        max_length=getattr(c, "max_position_embeddings", 2048),
    )


def _trial_texts(vocab: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab, (size,), generator=generator).to(device) for size in (24, 7)]


def _try(
    model: TransformersModel,
    spec: Decoder,
    texts: list[Tensor],
    expected: list[Tensor],
    layout: Layout,
) -> None:
    """Run the first text in two chunks, the second beside the first chunk."""
    page_size, cut = 8, 11
    device = texts[0].device
    cache = KVCache(spec, 4, page_size, dtype=model.dtype, device=device, layout=layout)
    steps = [([cut, 7], [0, 0], [[2, 0], [1]]), ([24 - cut], [cut], [[2, 0, 3]])]
    tokens = [torch.cat((texts[0][:cut], texts[1])), texts[0][cut:]]
    answers = list[Tensor]()
    for (counts, starts, pages), new in zip(steps, tokens, strict=True):
        batch = AttentionBatch.build(counts, starts, pages, page_size, device)
        positions = torch.cat(
            [torch.arange(s, s + c, device=device) for s, c in zip(starts, counts, strict=True)]
        )
        answers.append(model.logits(model(new, positions, batch, cache)))
    ours = torch.cat((answers[0][:cut], answers[1], answers[0][cut:]))
    theirs = torch.cat(expected).float()
    error = float((ours - theirs).norm() / theirs.norm())
    if not error <= _TOLERANCES.get(model.dtype, _ROUNDED):
        raise ModelError(
            "Run in chunks beside another text it does not answer what transformers answers "
            f"(relative error {error:.2g}): it keeps state outside of its attention, so it "
            "needs a spec."
        )
    model.progress = 0
