"""A sequence: its request, output log and state, from arrival to end.

        place            first token           max_tokens, stop, abort, failure
queued -------> prefill -------------> decode -----------------------------------> ended
   ^               |                      |
   +--- preempt ---+--- worker lost ------+
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

import msgspec

from baton.protocol import BACKGROUND, Media, NewSequence, Pooling, QueueEstimate, Sampling, Submit
from baton.protocol.packed_tokens import num_tokens
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_hashes import BlockHashes, media_key, salt
from baton_scheduler.media_spans import MediaSpans
from baton_scheduler.phase_times import PhaseTimer

Key: TypeAlias = tuple[int, int]
"""Position in the order of service; lower runs first, and keys are unique."""
UNLIMITED = sys.maxsize
"""`Sequence.prefill_limit` of a sequence whose prompt may run to its end."""


@dataclass(slots=True, eq=False)
class Sequence:
    """All data needed to run a sequence, and to run it again after preemption."""

    gateway: str
    submit: Submit
    trace: str
    arrival: int
    """Serial number of the sequence, in order of arrival."""
    arrival_time: float
    """Arrival time, in the state's time."""
    num_prompt: int
    log: array[int]
    """Output tokens so far; append-only."""
    phase_timer: PhaseTimer
    """Time spent in each phase."""
    key: Key = (0, 0)
    losses: int = 0
    """Number of steps that returned no token for it although they should have."""
    cell: Cell | None = None
    """Suspects of a worker crash that it must run with, separate from all other sequences."""
    mark: int = 0
    """Length of its log at which it has passed the position of that crash."""
    deaths: int = 0
    """Number of worker crashes during which it was running."""
    lone_deaths: tuple[int, ...] = ()
    """Epochs of the workers that crashed while it was the only one."""
    failures: int = 0
    """Number of failed KV transfers."""
    worker: str | None = None
    """Worker that runs it; None while it is queued."""
    slot: int = -1
    ended: bool = False
    deadline: float | None = None
    """Time at which it ends with an error, in the state's time."""
    billed_tenant: int = 0
    """Number of the tenant account that its tokens are charged to, under fair queueing."""
    cached: int | None = None
    """Prompt tokens found in the cache at its first placement, until reported to the gateway."""
    estimate: QueueEstimate | None = None
    """Queue estimate, until reported to the gateway with its first tokens."""
    leader: Sequence | None = None
    """First choice of the same request, which computes the prompt for all choices."""
    decode_target: str = ""
    """Decode target that pulls finished parts of the prompt during its prefill."""
    num_pull_tokens: int = 0
    """Number of tokens that the target was ordered to pull."""
    prompt_cached: bool = False
    """The prompt's KV is in pages that other sequences can share."""
    num_awaited: int = 0
    """Number of encodings and embedding transfers that it waits for before it starts."""
    prefill_limit: int = UNLIMITED
    """Number of leading tokens that may run: those before the first media item that is still being
    encoded for it."""
    media_worker: str = ""
    """Worker to which its embeddings were last sent, and where it is to start."""
    num_pulls: int = 0
    """Number of workers to which its embeddings were sent since it was queued."""
    weights: bytes = b""
    """Digest of the weights that it runs on; empty for the initial weights."""
    _chain: BlockHashes | None = None
    _spans: MediaSpans | None = None

    @property
    def handle(self) -> int:
        """The gateway's handle."""
        return self.submit.handle

    @property
    def model(self) -> str:
        """Name of the model; empty if any worker may run it."""
        return self.submit.model

    @property
    def adapter(self) -> bytes:
        """Digest of its adapter; empty for none."""
        return self.submit.adapter

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters."""
        return self.submit.sampling

    @property
    def pooling(self) -> Pooling | None:
        """Pooling parameters; None if it generates tokens."""
        return self.submit.pooling

    @property
    def single_step(self) -> bool:
        """All tokens must run in one step."""
        return self.pooling is not None and self.pooling.reach == "whole"

    @property
    def num_tokens(self) -> int:
        """Number of prompt and output tokens."""
        return self.num_prompt + len(self.log)

    @property
    def scores_only(self) -> bool:
        """No token is sampled: only prompt log-probabilities or a vector are requested."""
        return self.sampling.max_tokens == 0

    @property
    def waits(self) -> bool:
        """True if it must not start in its turn: its leader is computing the prompt, its media are
        being encoded, or it is a suspect, which is started by its trial."""
        leader = self.leader
        behind = leader is not None and not (leader.prompt_cached or leader.ended)
        return behind or self.num_awaited > 0 or self.cell is not None

    @property
    def never_sampled(self) -> bool:
        """True if no token was ever sampled, under any scheduler."""
        return not self.phase_timer.started and not self.submit.log

    @property
    def past_mark(self) -> bool:
        """True if it has passed the position of a worker crash without causing another."""
        return len(self.log) >= self.mark

    @property
    def complete(self) -> bool:
        """Nothing is left to compute: the log is full and no prompt token is to be scored."""
        wants_scores = self.sampling.prompt_logprobs >= 0 and self.num_prompt > 1
        if self.scores_only:
            return not wants_scores and self.pooling is None
        return len(self.log) >= self.sampling.max_tokens

    @property
    def reusable(self) -> int:
        """Maximum number of tokens taken from the prefix cache: all but the last; none if the
        prompt is to be scored or its hidden states pooled."""
        if self.pooling is not None and self.pooling.reach != "last":
            return 0
        unscored = self.sampling.prompt_logprobs >= 0 and not self.log
        return 0 if unscored else self.num_tokens - 1

    @property
    def is_background(self) -> bool:
        """True if it comes after all other sequences under every policy."""
        return self.submit.priority >= BACKGROUND

    def num_drafts(self, most: int) -> int:
        """Most draft tokens per step on a worker that proposes up to `most`."""
        requested = self.sampling.num_speculative_tokens
        if self.pooling is not None or self.scores_only:
            return 0
        return most if requested < 0 else min(requested, most)

    def chain(self, size: int) -> BlockHashes:
        """Block hashes for blocks of `size` tokens."""
        if self._chain is None or self._chain.size != size:
            self._chain = BlockHashes(self.submit, self.log, size, self.weights)
        return self._chain

    def use_weights(self, digest: bytes) -> None:
        """Use other weights from now on. KV computed with the previous ones cannot be reused."""
        if digest != self.weights:
            self.weights, self._chain = digest, None

    def follow(self, other: Sequence) -> None:
        """Wait for `other` if it is a choice of the same request and can share its prompt."""
        first, second = other.submit, self.submit
        if first.request != second.request or first.tokens != second.tokens:
            return
        same = (first.model, first.adapter) == (second.model, second.adapter)
        same = same and (first.tenant, first.salt) == (second.tenant, second.salt)
        if [item.digest for item in first.media] != [item.digest for item in second.media]:
            return
        if same and other.reusable and self.reusable:
            self.leader = other.leader or other

    def place(self, worker: str, slot: int) -> None:
        """queued -> prefill."""
        assert not self.ended and self.worker is None
        self.worker, self.slot = worker, slot
        self.decode_target, self.num_pull_tokens = "", 0

    def leave(self) -> None:
        """prefill or decode -> queued."""
        assert self.worker is not None
        self.worker, self.slot = None, -1

    def end(self) -> None:
        """Any state -> ended; exactly once."""
        assert not self.ended and self.worker is None
        self.ended = True

    def entry(self, computed: int = 0) -> NewSequence:
        """The message that adds it to a worker's batch, with the KV of `computed` tokens already in
        its pages.

        The prompt is scored only once: a non-empty log shows that it was.
        """
        sampling = self.sampling
        if self.log and sampling.prompt_logprobs >= 0:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        return NewSequence(
            slot=self.slot,
            tokens=self.submit.tokens + pack(self.log),
            num_prompt=self.num_prompt,
            sampling=sampling,
            request=self.submit.request,
            trace=self.trace,
            num_computed=computed,
            pooling=self.pooling,
            media=self._media(computed),
            cache_root=salt(self.submit, self.weights),
            prediction=self.submit.prediction,
            adapter=self.submit.adapter,
        )

    @property
    def spans(self) -> MediaSpans:
        """Positions in its prompt where steps may end."""
        if self._spans is None:
            self._spans = MediaSpans(self.submit.media)
        return self._spans

    @property
    def media_bytes(self) -> int:
        """Bytes of the pixels that are sent with it, without those in shared memory."""
        inline = (item.pixels for item in self.submit.media if not item.pixels.token)
        return sum(pixels.num_bytes for pixels in inline)

    def _media(self, computed: int) -> tuple[Media, ...]:
        """Its media under their keys in the worker's cache, without the pixels of computed
        items."""
        return tuple(self._keyed(item, computed) for item in self.submit.media)

    def _keyed(self, item: Media, computed: int) -> Media:
        key = media_key(self.submit, item.digest, self.weights)
        pixels = item.pixels
        if not item.is_needed(computed):
            pixels = msgspec.structs.replace(pixels, data=b"", token=b"", address="")
        return msgspec.structs.replace(item, digest=key, pixels=pixels)


@dataclass(slots=True, eq=False)
class Cell:
    """Suspects that run together, on a worker of their own."""

    members: list[Sequence]
    worker: str = ""
    """Worker of these suspects; empty while they wait for one."""
    fresh: bool = False
    """Whether one worker death that is not explained yet has put them here."""

    @classmethod
    def of(cls, members: list[Sequence], *, fresh: bool = False) -> Self:
        """A cell, and its members in it."""
        cell = cls(list(members), fresh=fresh)
        for sequence in members:
            sequence.cell = cell
        return cell

    def free(self, members: list[Sequence]) -> None:
        """Let members go."""
        for sequence in members:
            sequence.cell = None
        self.members = [sequence for sequence in self.members if sequence.cell is self]


def sequence(
    gateway: str,
    submit: Submit,
    trace: str,
    arrival: int,
    now: float,
    order: Callable[[Sequence], Key],
) -> Sequence:
    """Create a sequence on arrival. Raises `ValueError` if the submission is invalid."""
    if not 0 <= submit.handle < 2**32 or not 0 <= submit.sampling.max_tokens < 2**31:
        raise ValueError("a number of the submission is out of range")
    if submit.pooling is not None and (submit.sampling.max_tokens or submit.log):
        raise ValueError("a vector and output tokens exclude each other")
    num_prompt, log = num_tokens(submit.tokens), unpack(submit.log)
    _check_media(submit.media, num_prompt, num_prompt - (submit.sampling.max_tokens == 0))
    _check_end(submit, num_prompt)
    new = Sequence(gateway, submit, trace, arrival, now, num_prompt, log, PhaseTimer(now))
    new.key = order(new)
    return new


def _check_media(media: tuple[Media, ...], num_prompt: int, num_run: int) -> None:
    """Raise `ValueError` unless each item has its digest and tokens of its own, in order, or stands
    among those of the item before it; `num_run` tokens of the prompt run."""
    end, before = 0, (0, 0)
    for item in media:
        place = (item.start, item.length)
        fits = place == before if item.num_within else item.start >= end
        if len(item.digest) != 32 or not fits or item.length < max(1, item.num_within):
            raise ValueError("a media item has no name or no place")
        _check_spans(item, num_run)
        end, before = item.start + item.length, place
    if end > num_prompt and not (media and media[-1].alongside):
        raise ValueError("a media item stands behind the end of the prompt")


def _check_end(submit: Submit, num_prompt: int) -> None:
    """Raise `ValueError` if tokens may be generated behind media that goes along with all."""
    end = num_prompt + submit.sampling.max_tokens
    if any(item.alongside and item.start + item.length < end for item in submit.media):
        raise ValueError("a media item that goes along with the tokens ends before them")


def _check_spans(item: Media, num_run: int) -> None:
    """Raise `ValueError` unless its spans are in order, of tokens that run: the last one of a
    prompt that is only scored does not. They are within the item, or one is the whole prompt."""
    end = 0
    for first, count in item.spans:
        if first < end or count < 1:
            raise ValueError("the spans of a media item are not in order")
        end = first + count
    whole = len(item.spans) == 1 and item.start == 0
    if (end > item.length and not whole) or item.start + end > num_run:
        raise ValueError("a span of a media item is behind its end, or behind what runs")
