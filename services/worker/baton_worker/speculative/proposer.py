"""Contract of proposers of draft tokens."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

    from baton_worker.checkpoint.loaded_model import LoadedModel
    from baton_worker.config import Config
    from baton_worker.graphs import Sizes
    from baton_worker.kv_cache import KVCache
    from baton_worker.layers.build_context import BuildContext
    from baton_worker.models.decoder import Model
    from baton_worker.spec import Ffn, Mixer
    from baton_worker.speculative.config import SpeculativeConfig
    from baton_worker.speculative.step_costs import StepCosts

Tokens = npt.NDArray[np.int32]
Column = npt.NDArray[np.int64]
NO_DRAFT = -1
"""In the place of a draft that cannot be made."""


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """Weights of a method. Methods derive their own class from it."""

    page_bytes: int
    """Bytes of one page of draft KV, of as many tokens as a page of the target; there are as many
    of them as of the target's."""
    method: str = field(default="", kw_only=True)
    """The method, if the checkpoint decides it."""
    most: int = field(default=0, kw_only=True)
    """Most drafts of a sequence in one step; 0: any number."""
    layers: tuple[tuple[Mixer | None, Ffn | None], ...] = field(default=(), kw_only=True)
    """Layers whose KV is in the pages of the target, behind its own."""


@dataclass(frozen=True, slots=True)
class WeightsContext:
    """The context in which weights of a method are loaded."""

    config: SpeculativeConfig
    settings: Config
    """Those of the worker."""
    target: LoadedModel
    target_path: Path
    build: BuildContext
    """The build context of the target's layers."""
    tables: Callable[[], Model] | None = None
    """Loads the embedding and the language head of the target whole, whose own are cut over ranks;
    None: they are whole."""


@dataclass(frozen=True, slots=True)
class ProposerContext:
    """The context that a proposer is built with. One per engine."""

    config: SpeculativeConfig
    target: LoadedModel
    """Its `drafter` is what the method's row in `DRAFT_WEIGHTS` has loaded."""
    build: BuildContext
    max_num_seqs: int
    max_model_len: int
    page_size: int
    num_pages: int
    graphs: Sizes | None = None
    """Steps of the target that are captured and replayed."""


class DraftRequest(NamedTuple):
    """A sequence that may get drafts in this step."""

    slot: int
    tokens: Tokens
    """int32 [any], a view: its prompt and its log."""
    most: int
    """Most drafts that there is room for, at least 1."""
    group: bytes = b""
    """Sequences that share cached prefixes. Drafts for one group never come from texts of another,
    which speed would reveal."""
    remaining: int = sys.maxsize
    """Most tokens that the sequence may still get."""


class DraftSampler(Protocol):
    """Draws drafts as the target draws tokens: with the request's parameters, its noise, and its
    grammar."""

    def sample(self, logits: Tensor, slots: Column) -> Tokens:
        """The next draft of some slots, behind those that it has drawn for them in this step.

        Args:
            logits: float32 [R, V] of the drafter; overwritten. V may differ from the target's.
            slots: int64 [R], each once; all of this step's requests.

        Returns:
            int32 [R]; `NO_DRAFT` where the sequence ends here, or the logits are not finite.
        """


class Tables(Protocol):
    """Block tables by slot."""

    @property
    def tables(self) -> npt.NDArray[np.int32]:
        """int32 [groups, slots, blocks]"""

    @property
    def page_size(self) -> int:
        """Tokens of a page."""


class TargetStep(NamedTuple):
    """What a step of the target has computed for B rows of T tokens, and what came of it. Each of
    the tokens is followed by another one in the log of its sequence: rejected drafts are not among
    them."""

    slots: Column
    """int64 [B]"""
    starts: Column
    """int64 [B]: position of each row's first token in its sequence."""
    counts: Column
    """int64 [B]: tokens of each row, at least 1."""
    next_tokens: Column
    """int64 [T]: the token behind each, row after row."""
    positions: Column
    """int64 [T] or [axes, T], see `StepInputs.positions`."""
    hidden: Tensor
    """[T, any], see `models.decoder.Model.forward`."""
    tables: Tables
    """The pages of all slots, also in later steps."""
    cache: KVCache
    """Those pages."""

    @property
    def lengths(self) -> Column:
        """int64 [B]: tokens of each row's sequence up to the last of `next_tokens`."""
        return self.starts + self.counts + 1

    @property
    def last(self) -> Column:
        """int64 [B]: index of each row's last token among the T."""
        last: Column = np.cumsum(self.counts) - 1
        return last


class Proposer(ABC):
    """Proposes the next tokens. A wrong draft costs time and never a token, so drafts need not be
    exact; but a proposer must not fail, and must not keep state that a request depends on."""

    costs: StepCosts | None = None
    """Seconds of drafting one token for each of so many rows; None: drafting takes no time."""

    @property
    def observes(self) -> bool:
        """Whether it is to be shown the target's steps."""
        return type(self).observe is not Proposer.observe

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """Up to `most` tokens for each sequence, int32, in the order of the requests."""

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone. Also called for slots that were never proposed for."""
        return

    def observe(self, step: TargetStep) -> None:
        """The target has run a step, of prompts or decoding rows, and its tokens are in the logs.

        What the prefix cache or another worker had of a sequence is not seen here.
        """
        return
